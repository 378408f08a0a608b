"""Mutation sample: would the quick tests notice if an operator of the library were another one?"""
