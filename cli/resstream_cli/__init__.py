"""The command line of resstream: one verb a module; parses, calls the library, prints."""
