"""Runs that one command starts, resumes and awaits together: the points of a sweep, a flow."""
