"""What a function says of its arguments, checked before it builds anything."""

from pullback.tensor.shaped.checks import shaped as shaped
