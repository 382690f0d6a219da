"""What users write with: tensors, what is traced of them, and the programs they become."""
