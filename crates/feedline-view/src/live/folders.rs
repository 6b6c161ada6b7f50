//! Where the sockets of processes lie, and how to knock at one.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The variable that forbids looking, or names the folder of the sockets.
const VARIABLE: &str = "FEEDLINE_WATCH";

/// What the variable says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Chosen {
    /// Nobody may look.
    Nothing,
    /// The usual folders.
    Usual,
    /// This one.
    Folder(PathBuf),
    /// Something that is neither.
    Nonsense(OsString),
}

impl Chosen {
    pub(super) fn now() -> Chosen {
        Chosen::of(std::env::var_os(VARIABLE))
    }

    fn of(value: Option<OsString>) -> Chosen {
        let Some(value) = value else { return Chosen::Usual };
        match value.to_string_lossy().trim().to_ascii_lowercase().as_str() {
            "" | "1" | "true" | "yes" | "on" => Chosen::Usual,
            "0" | "false" | "no" | "off" => Chosen::Nothing,
            _ if Path::new(&value).is_absolute() => Chosen::Folder(value.into()),
            _ => Chosen::Nonsense(value),
        }
    }
}

/// What is wrong with the variable that says whether and where others may look at this process;
/// `None` if nothing is.
#[must_use]
pub fn complaint() -> Option<String> {
    match Chosen::now() {
        Chosen::Nonsense(value) => Some(format!(
            "{VARIABLE}={}: is neither 0, 1 nor the absolute path of a folder; this process cannot be watched",
            value.display()
        )),
        _ => None,
    }
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn within(folders: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut named: Vec<PathBuf> = Vec::new();
    for folder in folders {
        let folder = folder.join(format!("feedline-{}", user()));
        if !named.contains(&folder) {
            named.push(folder);
        }
    }
    named
}

fn runtime() -> Option<PathBuf> {
    std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Folders in which a socket may be made, the best first.
pub(super) fn to_listen() -> Vec<PathBuf> {
    match Chosen::now() {
        Chosen::Nothing | Chosen::Nonsense(_) => Vec::new(),
        Chosen::Folder(folder) => vec![folder],
        Chosen::Usual => {
            let runtime = runtime().filter(|folder| is_kept_by_user(folder));
            within(runtime.into_iter().chain([PathBuf::from("/tmp")]).collect())
        }
    }
}

/// Folders in which processes of this user may have sockets: the one that was chosen, or else all
/// of the usual ones, as what the environment says differs from shell to shell.
#[must_use]
pub fn searched() -> Vec<PathBuf> {
    if let Chosen::Folder(folder) = Chosen::now() {
        return vec![folder];
    }
    let users = PathBuf::from(format!("/run/user/{}", user()));
    within(runtime().into_iter().chain([users, PathBuf::from("/tmp")]).collect())
}

/// Makes the folder if need be; an error if others may enter it.
pub(super) fn make_private(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ if is_private(folder) => Ok(()),
        _ => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// A real folder of this user's that nobody else may enter.
pub(super) fn is_private(folder: &Path) -> bool {
    is_own(folder, 0o077)
}

/// A real folder of this user's in which nobody else can put anything.
fn is_kept_by_user(folder: &Path) -> bool {
    is_own(folder, 0o022)
}

fn is_own(folder: &Path, forbidden: u32) -> bool {
    fs::symlink_metadata(folder)
        .is_ok_and(|found| found.is_dir() && found.uid() == user() && found.mode() & forbidden == 0)
}

/// The process of a socket, by the socket's name.
fn process_of(socket: &Path) -> Option<u32> {
    socket.file_name()?.to_str()?.strip_suffix(".sock")?.parse().ok()
}

/// The sockets in a folder and whose they are. A folder that others may enter has none.
pub(super) fn sockets(folder: &Path) -> Vec<(u32, PathBuf)> {
    if !is_private(folder) {
        return Vec::new();
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((process_of(&entry.path())?, entry.path()))).collect()
}

/// There is no such process, as far as one can see from here.
pub(super) fn is_dead(process: u32) -> bool {
    Path::new("/proc/self").exists() && !Path::new(&format!("/proc/{process}")).exists()
}

/// Connects at once or not at all: a process that is stopped, with a full queue, is not waited for.
pub(super) fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Nobody listens at this socket any more.
pub(super) fn is_stale(path: &Path) -> bool {
    connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Removes what processes left here that could not: those that were killed, and children of
/// `multiprocessing`. The process may be one of another container, so both signs are looked at.
pub(super) fn sweep(folder: &Path) {
    for (process, socket) in sockets(folder) {
        if is_dead(process) && is_stale(&socket) {
            let _ = fs::remove_file(socket);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("feedline-{name}-{}", std::process::id()));
        make_private(&folder).unwrap();
        folder
    }

    #[test]
    fn only_a_private_folder_will_do() {
        let base = folder("private");
        let mode = |mode| fs::set_permissions(&base, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o755);
        assert!(!is_private(&base) && is_kept_by_user(&base) && make_private(&base).is_err());
        mode(0o770);
        assert!(!is_private(&base) && !is_kept_by_user(&base));
        mode(0o700);
        assert!(is_private(&base) && is_kept_by_user(&base));
        let link = base.with_extension("link");
        symlink(&base, &link).unwrap();
        assert!(!is_private(&link), "a link may lead anywhere");
        fs::remove_file(&link).unwrap();
        let file = base.join("file");
        fs::write(&file, "").unwrap();
        assert!(!is_private(&file) && !is_private(&base.join("none")));
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn the_variable() {
        let of = |text: &str| Chosen::of(Some(text.into()));
        for no in ["0", "false", "No", "OFF"] {
            assert_eq!(of(no), Chosen::Nothing, "{no}");
        }
        for yes in ["", "1", "true"] {
            assert_eq!(of(yes), Chosen::Usual, "{yes}");
        }
        assert_eq!(of("/a/b"), Chosen::Folder("/a/b".into()));
        assert_eq!(of("a/b"), Chosen::Nonsense("a/b".into()));
        assert_eq!(Chosen::of(None), Chosen::Usual);
    }

    #[test]
    fn what_dead_processes_left_is_swept() {
        let base = folder("sweep");
        let gone = base.join(format!("{}.sock", u32::MAX));
        let (alive, other) = (base.join("1.sock"), base.join("notes.txt"));
        // Dropped: nobody listens there.
        drop([UnixListener::bind(&gone).unwrap(), UnixListener::bind(&alive).unwrap()]);
        fs::write(&other, "mine").unwrap();
        let answering = base.join(format!("{}.sock", u32::MAX - 1));
        let listener = UnixListener::bind(&answering).unwrap();
        sweep(&base);
        assert!(!gone.exists() && alive.exists() && other.exists() && answering.exists());
        drop(listener);
        sweep(&base);
        assert!(!answering.exists());
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn a_full_queue_is_not_waited_for() {
        let base = folder("queue");
        let path = base.join("1.sock");
        let listener = UnixListener::bind(&path).unwrap();
        // Nobody accepts: sooner or later there is no room.
        let mut kept = Vec::new();
        let refused = (0..100_000).find_map(|_| match connect(&path) {
            Ok(stream) => {
                kept.push(stream);
                None
            }
            Err(error) => Some(error.kind()),
        });
        assert!(
            refused.is_some_and(|kind| kind != io::ErrorKind::ConnectionRefused),
            "{refused:?}"
        );
        assert!(!is_stale(&path), "it is busy, not gone");
        drop(listener);
        fs::remove_dir_all(&base).unwrap();
    }
}
