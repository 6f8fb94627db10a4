"""normscope inside other tools; each module needs the package it is named after."""
