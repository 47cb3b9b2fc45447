"""Which store a URI opens; each adapter stands in its own file beside this one."""
