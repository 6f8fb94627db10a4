"""The tour: everything normscope measures, on one net under several normalizations."""
