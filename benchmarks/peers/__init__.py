"""Other ways to cut the same Llama over ranks: a split written by hand, and what other libraries do by themselves."""
