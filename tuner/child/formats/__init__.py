"""Libraries that read and write files past Python's ``open``, whichever framework trains; what a framework writes by
itself is led by the framework's own folder."""
