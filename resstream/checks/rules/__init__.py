"""One file a rule: its code, its explanation, and how it names suspects."""
