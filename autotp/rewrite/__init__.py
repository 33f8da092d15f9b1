"""The passes that turn a placed graph into the program one rank runs."""
