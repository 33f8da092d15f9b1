"""What every test runs under: no network, and one thread a process, for many ranks share few cores."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"

import torch

torch.set_num_threads(1)
