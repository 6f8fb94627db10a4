"""Figures of wei2018, Mean-field Analysis of Batch Normalization."""
