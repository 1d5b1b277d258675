"""The claims, what is measured of each, and how it is judged; the registry imports them all."""
