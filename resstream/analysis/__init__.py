"""One function, one result: what happens without a write, what the stream says, who wrote it."""
