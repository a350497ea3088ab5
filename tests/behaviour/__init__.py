"""What users meet, whatever is inside: public calls, the command line, messages on the wire."""
