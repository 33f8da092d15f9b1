"""What the commands do. Everything here imports torch, so a command imports it when its arguments are known to be right."""
