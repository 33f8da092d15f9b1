"""What others wrote: texts, JSON and TOML that may be damaged, clumsy or hostile. It is data, or one error of one line."""
