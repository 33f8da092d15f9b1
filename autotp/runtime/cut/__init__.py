"""Cut parameters, their gradients and what is made of them: the dense tensor to whoever looks, this rank's part in memory."""
