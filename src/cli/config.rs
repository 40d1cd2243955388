//! `config META-URL`: shows the record of a volume or changes it (`spec/surface.md` 5.2).
//!
//! Only what is given is changed, and each change is one line on standard output. What cannot be taken back, or hurts
//! clients that are connected, is asked for first.

use super::format::{LimitOptions, apply_features, apply_storage};
use super::options::StorageOptions;
use super::{open, proceed_anyway};
use crate::config::Size;
use crate::config::units::{Bandwidth, parse_go_duration};
use crate::config::volume::{Access, Tier, Version, VolumeFormat};
use crate::meta::Meta;
use crate::meta::engine::Scan;
use crate::meta::record::{Key, QuotaOwner};
use crate::object::probe;
use anyhow::{Context as _, bail};
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    /// Where the metadata is
    #[arg(value_name = "META-URL", required = true)]
    meta: String,
    /// Ask no questions
    #[arg(short, long)]
    yes: bool,
    /// Check nothing
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    storage: StorageOptions,
    /// Upload bandwidth of each client in Mbit/s
    #[arg(long, value_name = "MBPS")]
    upload_limit: Option<Bandwidth>,
    /// Download bandwidth of each client in Mbit/s
    #[arg(long, value_name = "MBPS")]
    download_limit: Option<Bandwidth>,
    #[command(flatten)]
    limits: LimitOptions,
    /// Seal secrets that are stored in plain text
    #[arg(long)]
    encrypt_secret: bool,
    /// Oldest client that may connect
    #[arg(long, value_name = "VERSION")]
    min_client_version: Option<String>,
    /// Newest client that may connect
    #[arg(long, value_name = "VERSION")]
    max_client_version: Option<String>,
    /// Keep statistics of directories (true or false)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    dir_stats: Option<bool>,
    /// Keep usage of users and groups (true or false)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    user_group_quota: Option<bool>,
    /// Keep a change log (true or false)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    changelog: Option<bool>,
    /// Age at which entries of the change log are dropped, such as 2h
    #[arg(long, value_name = "TIME", value_parser = parse_go_duration)]
    changelog_max_age: Option<Duration>,
    /// Entries of the change log to keep, 0 for all
    #[arg(long, value_name = "N")]
    changelog_max_lines: Option<u32>,
    /// Tier (0-3) that --storage-class and --tag define
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=3))]
    tier: Option<u8>,
}

/// The lines that say what changes.
#[derive(Default)]
struct Report(Vec<String>);

impl Report {
    /// One line, the name right-aligned to ten columns.
    fn changed(&mut self, name: &str, from: impl std::fmt::Display, to: impl std::fmt::Display) {
        self.0.push(format!("{name:>10}: {from} -> {to}"));
    }

    fn set<T: PartialEq + Clone>(&mut self, name: &str, kept: &mut T, given: Option<&T>, show: impl Fn(&T) -> String) {
        if let Some(given) = given.filter(|given| *given != kept) {
            self.changed(name, show(kept), show(given));
            *kept = given.clone();
        }
    }
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let uri = open::meta_uri(&args.meta)?;
    let meta = open::meta(&uri).await?;
    let stored = open::existing_format(&meta).await?;
    let mut format = stored.clone();
    let mut report = Report::default();
    if asks_for_nothing(&args) {
        println!("{}", format.redacted());
        return Ok(());
    }
    stored.check_layout()?;
    apply(&args, &mut format, &mut report)?;
    if format == stored {
        println!("Nothing changed.");
        return Ok(());
    }
    if !args.force {
        format.check_update(&stored)?;
        // What makes the volume unusable for us (an unknown compression) was so before; what is new must be refused.
        if stored.admit(Access::Read).is_ok() && Version::ours() < format.min_client_version.parse()? {
            bail!("min-client-version {} would shut out this client", format.min_client_version);
        }
        check(&args, &meta, &stored, &format).await?;
    }
    meta.set_rules(open::rules(&format));
    meta.format(&format.to_json()).await.context("update the volume's record")?;
    report.0.iter().for_each(|line| println!("{line}"));
    Ok(())
}

fn asks_for_nothing(args: &Args) -> bool {
    let (s, l) = (&args.storage, &args.limits);
    let texts = [
        &s.storage,
        &s.bucket,
        &s.access_key,
        &s.secret_key,
        &s.session_token,
        &s.storage_class,
        &s.tag,
        &l.ranger_rest_url,
        &l.ranger_service,
        &args.min_client_version,
        &args.max_client_version,
    ];
    let flags = [args.dir_stats, args.user_group_quota, args.changelog];
    texts.iter().all(|text| text.is_none())
        && flags.iter().all(|flag| flag.is_none())
        && args.upload_limit.is_none()
        && args.download_limit.is_none()
        && l.capacity.is_none()
        && l.inodes.is_none()
        && l.trash_days.is_none()
        && !l.enable_acl
        && l.kerberos_config_file.is_none()
        && !args.encrypt_secret
        && args.changelog_max_age.is_none()
        && args.changelog_max_lines.is_none()
        && args.tier.is_none()
}

/// Changes the record and says so, in the alphabetical order of the options, as the peer does.
fn apply(args: &Args, format: &mut VolumeFormat, report: &mut Report) -> anyhow::Result<()> {
    let old = format.clone();
    let (storage, limits) = (&args.storage, &args.limits);
    if args.tier.is_some() {
        if storage.storage_class.is_none() && storage.tag.is_none() {
            bail!("--tier needs --storage-class or --tag");
        }
        let others =
            [&storage.storage, &storage.bucket, &storage.access_key, &storage.secret_key, &storage.session_token];
        if others.iter().any(|other| other.is_some()) {
            bail!("--tier cannot be changed together with the bucket or its keys");
        }
    }
    if args.changelog == Some(true) && !format.change_log {
        bail!("this build cannot write a change log, so a volume with one could not be mounted with it for writing");
    }
    apply_storage(format, storage, old.key_encrypted || args.encrypt_secret || old.secret_key.is_empty())?;
    if args.encrypt_secret && !format.key_encrypted {
        let secrets = format.open_secrets()?;
        format.set_secrets(&secrets, true)?;
    }
    apply_features(format, limits)?;

    let text = |value: &String| value.clone();
    if old.access_key != format.access_key {
        report.changed("access-key", &old.access_key, &format.access_key);
    }
    if old.bucket != format.bucket {
        report.changed("bucket", &old.bucket, &format.bucket);
    }
    let capacity = limits.capacity.map(Size::bytes);
    report.set("capacity", &mut format.capacity_bytes, capacity.as_ref(), |bytes| Size(*bytes).to_string());
    report.set("changelog", &mut format.change_log, args.changelog.as_ref(), bool::to_string);
    let age = args.changelog_max_age.map(|age| i64::try_from(age.as_secs()).unwrap_or(i64::MAX));
    report.set("changelog-max-age", &mut format.change_log_max_age_s, age.as_ref(), |s| format!("{s}s"));
    let lines = args.changelog_max_lines.map(i64::from);
    report.set("changelog-max-lines", &mut format.change_log_max_lines, lines.as_ref(), i64::to_string);
    report.set("dir-stats", &mut format.dir_stats, args.dir_stats.as_ref(), bool::to_string);
    let download = args.download_limit.map(|limit| limit.0);
    report.set("download-limit", &mut format.download_limit_mbps, download.as_ref(), |m| Bandwidth(*m).to_string());
    if old.enable_acl != format.enable_acl {
        report.changed("enable-acl", old.enable_acl, format.enable_acl);
    }
    report.set("inodes", &mut format.inodes, limits.inodes.as_ref(), u64::to_string);
    if old.kerb_conf != format.kerb_conf {
        report.0.push("kerberos-config-file: updated".into());
    }
    report.set("max-client-version", &mut format.max_client_version, args.max_client_version.as_ref(), text);
    if old.ranger_rest_url != format.ranger_rest_url {
        report.changed("ranger-rest-url", &old.ranger_rest_url, &format.ranger_rest_url);
    }
    if old.ranger_service != format.ranger_service {
        report.changed("ranger-service", &old.ranger_service, &format.ranger_service);
    }
    if storage.secret_key.is_some() {
        report.0.push("secret-key: updated".into());
    }
    if storage.session_token.is_some() {
        report.0.push("session-token: updated".into());
    }
    if args.encrypt_secret && old.key_encrypted != format.key_encrypted {
        report.0.push("secrets: sealed".into());
    }
    if old.storage != format.storage {
        report.changed("storage", &old.storage, &format.storage);
    }
    apply_tier(args, format, report)?;
    let days = limits.trash_days.map(i64::from);
    report.set("trash-days", &mut format.trash_days, days.as_ref(), i64::to_string);
    let upload = args.upload_limit.map(|limit| limit.0);
    report.set("upload-limit", &mut format.upload_limit_mbps, upload.as_ref(), |m| Bandwidth(*m).to_string());
    report.set("user-group-quota", &mut format.user_group_quota, args.user_group_quota.as_ref(), bool::to_string);
    apply_versions(args, &old, format, report)
}

fn apply_tier(args: &Args, format: &mut VolumeFormat, report: &mut Report) -> anyhow::Result<()> {
    let id = args.tier.unwrap_or(0);
    let tier = format.tiers.entry(id).or_insert_with(|| Tier::new(id, "", ""));
    for (name, given, kept) in [
        ("storage-class", &args.storage.storage_class, &mut tier.storage_class),
        ("tag", &args.storage.tag, &mut tier.tag),
    ] {
        match args.tier {
            Some(id) if given.as_ref().is_some_and(|given| given != kept) => {
                let given = given.as_deref().unwrap_or_default();
                report.0.push(format!("set tier {id} {name}: {given}"));
                *kept = given.to_string();
            }
            Some(_) => {}
            None => report.set(name, kept, given.as_ref(), String::clone),
        }
    }
    if args.tier.is_some() {
        format.require_client("1.4.0-A")?;
    }
    Ok(())
}

fn apply_versions(
    args: &Args,
    old: &VolumeFormat,
    format: &mut VolumeFormat,
    report: &mut Report,
) -> anyhow::Result<()> {
    if let Some(given) = &args.max_client_version
        && !given.is_empty()
    {
        let _: Version = given.parse()?;
    }
    if let Some(given) = &args.min_client_version {
        let wanted: Version = given.parse()?;
        if !old.min_client_version.is_empty() && wanted < old.min_client_version.parse()? {
            bail!("cannot lower min-client-version from {} to {given}", old.min_client_version);
        }
        format.require_client(given)?;
    }
    if old.min_client_version != format.min_client_version {
        report.changed("min-client-version", &old.min_client_version, &format.min_client_version);
    }
    Ok(())
}

/// Tries what is new, and asks before what cannot be taken back.
async fn check(args: &Args, meta: &Meta, old: &VolumeFormat, new: &VolumeFormat) -> anyhow::Result<()> {
    let moved = old.storage != new.storage
        || old.bucket != new.bucket
        || old.access_key != new.access_key
        || args.storage.secret_key.is_some()
        || args.storage.session_token.is_some();
    if moved {
        let store = open::objects(new).context("object storage")?;
        probe(&*store, None).await.with_context(|| format!("Storage {} is not configured correctly", store.name()))?;
    }
    let mut warnings = Vec::new();
    if (new.capacity_bytes != old.capacity_bytes && new.capacity_bytes > 0)
        || (new.inodes != old.inodes && new.inodes > 0)
    {
        let usage = meta.statfs(crate::base::Ino::ROOT).await.context("read the usage")?;
        if new.capacity_bytes > 0 && usage.used > new.capacity_bytes {
            let (limit, used) = (Size(new.capacity_bytes), Size(usage.used));
            warnings.push(format!("New capacity {limit} is below the {used} in use."));
        }
        if new.inodes > 0 && usage.inodes_used > new.inodes {
            warnings.push(format!("New limit of {} inodes is below the {} in use.", new.inodes, usage.inodes_used));
        }
    }
    if new.trash_days == 0 && old.trash_days > 0 {
        warnings.push("The current trash will be emptied and future removed files will purged immediately.".into());
    }
    if old.dir_stats && !new.dir_stats {
        refuse_with_quotas(meta).await?;
    }
    if (new.dir_stats && !old.dir_stats) || (new.user_group_quota && !old.user_group_quota) {
        bail!(
            "dir-stats and user-group-quota cannot be switched on with this build yet: what is stored must be counted first"
        );
    }
    if new.min_client_version != old.min_client_version || new.max_client_version != old.max_client_version {
        warnings.extend(shut_out(meta, new).await?);
    }
    if warnings.is_empty() {
        return Ok(());
    }
    warnings.iter().for_each(|warning| println!("WARNING: {warning}"));
    if args.yes { Ok(()) } else { proceed_anyway() }
}

/// Directory quotas stand on directory statistics.
async fn refuse_with_quotas(meta: &Meta) -> anyhow::Result<()> {
    let mut after = None;
    loop {
        let page = meta
            .engine()
            .scan(&Scan::Quotas, after.as_ref(), 1000)
            .await
            .map_err(open::fault)
            .context("list quotas")?;
        if page.rows.iter().any(|(key, _)| matches!(key, Key::Quota(QuotaOwner::Directory(_)))) {
            bail!("cannot disable dir stats when there are directory quotas");
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(()),
        }
    }
}

/// Connected clients that could not connect again.
async fn shut_out(meta: &Meta, format: &VolumeFormat) -> anyhow::Result<Vec<String>> {
    let least: Option<Version> = format.min_client_version.parse().ok();
    let most: Option<Version> = format.max_client_version.parse().ok();
    let mut warnings = Vec::new();
    for session in meta.sessions().await.context("list sessions")? {
        let Some(info) = session.info else { continue };
        let outside = match info.version.parse::<Version>() {
            Ok(version) => {
                least.as_ref().is_some_and(|least| version < *least)
                    || most.as_ref().is_some_and(|most| version > *most)
            }
            // A version that cannot be read cannot be let in either.
            Err(_) => true,
        };
        if outside {
            warnings.push(format!(
                "The client {} at {}:{} (session {}) will be rejected after modification.",
                info.version, info.host_name, info.mount_point, session.sid
            ));
        }
    }
    Ok(warnings)
}
