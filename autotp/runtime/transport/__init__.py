"""How bytes and words go between processes: shared memory, torch.distributed, the store. And how a rank hears of lost ones."""
