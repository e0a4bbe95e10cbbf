"""The names of `import overhear`.

Each in a module named after it, and what runs from Python give back.
"""
