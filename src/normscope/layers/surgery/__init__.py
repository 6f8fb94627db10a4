"""Changes to the norm layers of a model: conversion and folding, checked by trial runs."""
