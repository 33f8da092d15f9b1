"""Cut parameters, their gradients and what is made of them: the dense tensor when read, this rank's part in memory."""
