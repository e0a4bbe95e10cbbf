"""The names of `import overhear`.

Each in a module named after it or, where it is a command alone, in `commands`; and what runs from
Python give back.
"""
