"""Does `check` accuse the right write?  Injected faults, healthy models, and what is expected."""
