"""Changes to the norm layers of a model: conversion, folding, and tracing the forward pass."""
