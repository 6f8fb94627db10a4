"""normscope command line: one command per file, no maths."""
