"""Figures of santurkar2018, How Does Batch Normalization Help Optimization?"""
