"""The comparison and its report."""
