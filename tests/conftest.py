"""What every test runs under: no network, one thread a process (many ranks share few cores), no terminal's width."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.pop("COLUMNS", None)

import torch

torch.set_num_threads(1)
