"""Writes the pictures of the tests beside it: python make.py (needs Pillow and NumPy)."""

from pathlib import Path

import numpy as np
from PIL import Image

here = Path(__file__).parent
# Four rows of eight: the left half dark red, the right half light green, the top row brighter.
rgb = np.zeros((4, 8, 3), np.uint8)
rgb[:, :4] = [120, 20, 20]
rgb[:, 4:] = [160, 230, 160]
rgb[0] += 20
picture = Image.fromarray(rgb)
picture.convert("CMYK").save(here / "cmyk.jpg", quality=95)
exif = Image.Exif()
exif[0x0112] = 6  # to be turned by 90° to the right
picture.save(here / "turned.jpg", quality=95, subsampling=0, exif=exif)
picture.convert("P", palette=Image.Palette.ADAPTIVE).save(here / "palette.png")
deep = (rgb.mean(axis=2) * 257).astype(np.uint16)
Image.fromarray(deep).save(here / "sixteen.png")
picture.convert("RGBA").save(here / "alpha.png")
picture.save(here / "animated.png", save_all=True, append_images=[Image.fromarray(255 - rgb)])
