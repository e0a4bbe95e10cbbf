"""What `import overhear` gives: each public name stands in a module that is named after it."""
