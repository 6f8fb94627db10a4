"""The checks of `normscope.doctor`, one function each; a new file here needs no other entry."""
