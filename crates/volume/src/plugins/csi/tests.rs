//! Names, modes and files, against what the kubelet makes of them.
