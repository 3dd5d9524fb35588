//! Memory that transfers read and write.

use std::os::fd::{AsFd, OwnedFd};

use railhead_abi::Code;
use railhead_abi::frame::{ACCESS_READ, ACCESS_WRITE};
use railhead_shm::memfd::{self, HUGE_PAGE_BYTES, Huge, MemfdError};
use railhead_shm::{Access, Mapping, OutOfRange, OwnedSpan};

use crate::error::SessionError;
use crate::session::{Session, check_grant, check_name};
use crate::write::RegionHandle;

/// Which pages a region shall lie on. An open number, as everything that C may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Pages(pub u8);

impl Pages {
    /// Hugepages if they can be had, else ordinary ones with a [`StepDown`].
    pub const PREFER_HUGE: Self = Self(0);
    /// Hugepages or an error.
    pub const REQUIRE_HUGE: Self = Self(1);
    /// Ordinary pages.
    pub const BASE: Self = Self(2);
}

/// Why a region lies on ordinary pages although hugepages were preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StepDown {
    /// Most of a hugepage would be unused.
    #[error("{bytes} bytes are less than half a hugepage")]
    Small {
        /// Bytes of the region.
        bytes: u64,
    },
    /// The kernel has no hugepages for it.
    #[error("no hugepages: {0}")]
    Unavailable(MemfdError),
}

/// What a region shall be.
#[derive(Debug, Clone, Copy)]
pub struct RegionOptions<'a> {
    /// Bytes.
    pub bytes: u64,
    /// Name under which others open it; empty means that nobody else can.
    pub name: &'a str,
    /// Who may open it: `NODE/NAME` of a session, `NODE/*`, or `*`; empty: nobody.
    pub grant: &'a str,
    /// [`crate::ACCESS_READ`] | [`crate::ACCESS_WRITE`].
    pub access: u32,
    /// Which pages.
    pub pages: Pages,
}

impl Default for RegionOptions<'_> {
    fn default() -> Self {
        Self { bytes: 0, name: "", grant: "", access: ACCESS_READ | ACCESS_WRITE, pages: Pages::PREFER_HUGE }
    }
}

impl RegionOptions<'_> {
    fn check(&self) -> Result<(), SessionError> {
        if self.bytes == 0 {
            return Err(SessionError::argument("bytes", Code::RegionSize, "a region of no bytes"));
        }
        if !self.name.is_empty() {
            check_name("name", self.name)?;
        }
        check_grant(self.grant)?;
        if self.name.is_empty() && !self.grant.is_empty() {
            return Err(SessionError::argument(
                "grant",
                Code::NameInvalid,
                "a region without a name cannot be granted",
            ));
        }
        if self.access == 0 || self.access & !(ACCESS_READ | ACCESS_WRITE) != 0 {
            let problem = format!("{:#x} is not ACCESS_READ, ACCESS_WRITE or both", self.access);
            return Err(SessionError::argument("access", Code::Unsupported, problem));
        }
        Ok(())
    }
}

/// A registered region, mapped into this process.
///
/// Dropping it unmaps it here; it stays registered until [`Region::release`] or the session's end.
#[derive(Debug)]
pub struct Region {
    session: Session,
    handle: RegionHandle,
    span: OwnedSpan,
    page_bytes: usize,
    step_down: Option<StepDown>,
    file: OwnedFd,
}

impl Region {
    pub(crate) fn create(session: &Session, options: &RegionOptions<'_>) -> Result<Self, SessionError> {
        options.check()?;
        let (file, step_down) = create_file(options)?;
        let mut region = Self::of_file(session, file, 0, options)?;
        region.step_down = step_down;
        Ok(region)
    }

    pub(crate) fn of_file(
        session: &Session,
        file: OwnedFd,
        offset: u64,
        options: &RegionOptions<'_>,
    ) -> Result<Self, SessionError> {
        options.check()?;
        let what = "the region";
        let mapping = Mapping::of_sealed(&file, Access::ReadWrite)
            .map_err(|source| SessionError::Map { what, source })?;
        if !offset.is_multiple_of(mapping.page_bytes() as u64) {
            let problem =
                format!("{offset} is not a multiple of the file's pages of {} bytes", mapping.page_bytes());
            return Err(SessionError::argument("offset", Code::RegionSize, problem));
        }
        let span = mapping
            .span()
            .part(offset, options.bytes)
            .map_err(|error| SessionError::argument("bytes", Code::RegionSize, error.to_string()))?;
        let handle = session.register(file.as_fd(), offset, options)?;
        Ok(Self {
            session: session.clone(),
            handle: RegionHandle { index: handle.index, generation: handle.generation },
            span,
            page_bytes: mapping.page_bytes(),
            step_down: None,
            file,
        })
    }

    /// For [`crate::Write::local`].
    #[must_use]
    pub const fn handle(&self) -> RegionHandle {
        self.handle
    }

    /// Bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.span.len() as u64
    }

    /// Bytes of the pages that it lies on.
    #[must_use]
    pub const fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Why it lies on ordinary pages although hugepages were preferred.
    #[must_use]
    pub const fn step_down(&self) -> Option<&StepDown> {
        self.step_down.as_ref()
    }

    /// The memory file.
    #[must_use]
    pub const fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Copies `source` to `offset` and on.
    ///
    /// # Errors
    /// [`OutOfRange`], with nothing copied.
    pub fn copy_in(&self, offset: u64, source: &[u8]) -> Result<(), OutOfRange> {
        self.span.write(offset, source)
    }

    /// Copies bytes from `offset` on into `target`.
    ///
    /// # Errors
    /// [`OutOfRange`], with nothing copied.
    pub fn copy_out(&self, offset: u64, target: &mut [u8]) -> Result<(), OutOfRange> {
        self.span.read(offset, target)
    }

    /// Sets `bytes` bytes from `offset` on to `value`.
    ///
    /// # Errors
    /// [`OutOfRange`], with nothing changed.
    pub fn fill(&self, offset: u64, bytes: u64, value: u8) -> Result<(), OutOfRange> {
        self.span.fill(offset, bytes, value)
    }

    /// The first byte. Valid while this region lives; transfers write there whenever a peer sends.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: the span is not kept, only its address is passed on.
        unsafe { self.span.span() }.as_ptr()
    }

    /// Deregisters and unmaps it. Transfers that use it must have completed.
    ///
    /// # Errors
    /// [`SessionError::Refused`] with `region_busy`: wait for completions, then try again with [`Session::deregister`];
    /// [`SessionError::DataplaneLost`].
    pub fn release(self) -> Result<(), SessionError> {
        self.session.deregister(self.handle)
    }
}

/// Makes and populates the memory file: a shortage is an error here, not a SIGBUS later.
fn create_file(options: &RegionOptions<'_>) -> Result<(OwnedFd, Option<StepDown>), SessionError> {
    let bytes = options.bytes;
    let make = |huge| {
        let file = memfd::create("railhead-region", bytes, huge)?;
        memfd::populate(&file)?;
        Ok(file)
    };
    let step_down = match options.pages {
        Pages::REQUIRE_HUGE => {
            let file = make(Huge::Default2M).map_err(|source| SessionError::Hugepages { bytes, source })?;
            return Ok((file, None));
        }
        Pages::BASE => None,
        Pages::PREFER_HUGE if bytes < HUGE_PAGE_BYTES as u64 / 2 => Some(StepDown::Small { bytes }),
        Pages::PREFER_HUGE => match make(Huge::Default2M) {
            Ok(file) => return Ok((file, None)),
            Err(error) => Some(StepDown::Unavailable(error)),
        },
        Pages(other) => {
            return Err(SessionError::argument(
                "pages",
                Code::Unsupported,
                format!("{other} is none of Pages' values"),
            ));
        }
    };
    Ok((make(Huge::No).map_err(|source| SessionError::Memory { bytes, source })?, step_down))
}
