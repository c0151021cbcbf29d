use std::io;
use std::path::PathBuf;
pub(crate) fn home_directory() -> io::Result<PathBuf> {
    if let Some(home) = std::env::var_os("HOME").map(PathBuf::from).filter(|path| path.is_absolute()) {
        return Ok(home);
    }
    let user = nix::unistd::User::from_uid(nix::unistd::getuid())?;
    user.map(|user| user.dir).ok_or_else(|| io::Error::other("HOME is not set and the user has no passwd entry"))
}
