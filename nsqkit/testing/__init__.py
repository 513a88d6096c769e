"""What users import in their own tests."""
