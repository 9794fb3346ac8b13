"""The reliability campaign: write while processes, disks and clocks fail; compare stores with what must be there."""
