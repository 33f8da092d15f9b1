"""What a trace leans on: the Python state that it read becomes guards, and what it wrote means that there is no program."""
