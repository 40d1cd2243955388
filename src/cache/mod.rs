//! Blocks on this machine: in memory and on local disks.
