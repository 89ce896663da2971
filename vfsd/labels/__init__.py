"""Label files of other programs, read and written: nothing here knows stores."""
