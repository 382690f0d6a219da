"""Loop nests as PTX by LLVM: a warp for each task, its threads are the lanes."""
