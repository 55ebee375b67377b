//! The manifest folder: pods, volumes, claims, configMaps and secrets as files.
