"""From a call of a unit to its program: guards, entries, graphs of torch.compile, and running whole where there is no program."""
