"""The scheduler of the dispatch path: its words, and its rules as pure Python."""
