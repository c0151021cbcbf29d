//! All reasons of conditions: values of [`crate::session::Condition::reason`] and of the record `launch.failed`.
//!
//! Later releases may add reasons. A reader shows the message of a reason that it does not know.

use crate::doc::Named;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $constant:ident = $name:literal,)*) => {
        $($(#[doc = $doc])+ pub const $constant: &str = $name;)*

        /// All reasons of this module, in the order of their declaration.
        pub const ALL: &[Named] = &[$(Named { name: $name, doc: &[$($doc,)+] },)*];
    };
}

reasons! {
    /// `Ready` is True: the agent waits for a prompt.
    IDLE = "Idle",
    /// `Ready` is True: a turn is running, and further prompts are queued.
    BUSY = "Busy",
    /// `Ready` is True: a turn waits for the end of a rate limit, and further prompts are queued.
    LIMITED = "Limited",
    /// `Ready` is False: the session is created, and nothing has been done yet.
    PENDING = "Pending",
    /// `Ready` is False: agentd checks prerequisites and builds the environment.
    PREPARING = "Preparing",
    /// `Ready` is False: the agent's process starts or opens the conversation.
    STARTING = "Starting",
    /// `Placed` is False: the client of the place was started, and the engine has not answered.
    SUBMITTED = "Submitted",
    /// `Placed` is False: the engine of the place has queued the launch. The message has its reason.
    QUEUED = "Queued",
    /// `Placed` is True: the agent runs on the place.
    RUNNING = "Running",
    /// `Placed` is True: the engine has announced that it will end the launch.
    ENDING_SOON = "EndingSoon",
    /// `Placed` is False: the engine of the place ended the launch. The message has its reason.
    PLACE_ENDED = "PlaceEnded",
    /// `Placed` is False: the place was not reached, or its client cannot be built.
    PLACE_UNREACHABLE = "PlaceUnreachable",
    /// `Placed` is Unknown: the connection to the place is cut, and the agent stays there.
    PLACE_AWAY = "PlaceAway",
    /// `Placed` is Unknown: the connection to the place is lost.
    PLACE_LOST = "PlaceLost",
    /// `Ready` is False: the agent crashed and is started again.
    BACKING_OFF = "BackingOff",
    /// `Ready` is False: the agent is being ended.
    STOPPING = "Stopping",
    /// The agent or a launch failed, and agentd does not retry. `agentctl resume` starts the session again.
    FAILED = "Failed",
    /// `Ready` is False: the session was not interactive, and its prompts are done. Also the reason of the conditions
    /// that became false with its agent.
    COMPLETED = "Completed",
    /// `LimitsChecked` is False: the agent reports no cost, so `limits.cost` cannot be checked.
    COST_UNKNOWN = "CostUnknown",
    /// `LimitsChecked` is False: the agent reports its cost in another currency than that of `limits.cost`.
    CURRENCY_DIFFERS = "CurrencyDiffers",
    /// `LimitsChecked` is True: the agent reports what the limits need, or there is no such limit any more.
    LIMITS_CHECKED = "LimitsChecked",
    /// `SpecApplied` is False: the changes that the message names take effect with the next launch.
    AWAITS_LAUNCH = "AwaitsLaunch",
    /// All repositories of the session are there.
    ALL_READY = "AllReady",
    /// `RepositoriesReady` is Unknown while agentd clones, changes or removes the repositories that the message names.
    WORKING = "Working",
    /// `git` is not in the directories of the system's programs.
    GIT_MISSING = "GitMissing",
    /// The remote could not be cloned. The message has git's words.
    CLONE_FAILED = "CloneFailed",
    /// The server of a repository requires a login that git does not have.
    REPOSITORY_LOGIN = "RepositoryLogin",
    /// The remote does not have the requested branch.
    NO_SUCH_BRANCH = "NoSuchBranch",
    /// The local repository of a worktree does not exist, or git cannot use it.
    NO_SUCH_REPOSITORY = "NoSuchRepository",
    /// git did not finish within `repositories.deadline`.
    REPOSITORY_TIMED_OUT = "RepositoryTimedOut",
    /// Something else has the path of the repository.
    PATH_TAKEN = "PathTaken",
    /// The repository cannot be read.
    REPOSITORY_UNREADABLE = "RepositoryUnreadable",
    /// The repository has a merge, a rebase or changes that git cannot put aside.
    REPOSITORY_BUSY = "RepositoryBusy",
    /// The repository could not be reset to its branch.
    RESET_FAILED = "ResetFailed",
    /// The worktree could not be added. The message has git's words.
    WORKTREE_FAILED = "WorktreeFailed",
    /// The repository could not be removed.
    REPOSITORY_NOT_REMOVED = "RepositoryNotRemoved",
    /// The repository was to be removed, and has work that would be lost.
    REPOSITORY_HAS_WORK = "RepositoryHasWork",
    /// The agent opens no conversation, or refuses the first prompt, for lack of a login.
    NOT_LOGGED_IN = "NotLoggedIn",
    /// The agent refused a prompt, because its login has ended.
    LOGIN_LOST = "LoginLost",
    /// The agent works again after it required a login.
    LOGGED_IN = "LoggedIn",
    /// Variables have other values than at the beginning of the conversation. The agent gets the former ones.
    PLACE_HELD = "PlaceHeld",
    /// The agent was given all additional directories.
    DIRECTORIES_GIVEN = "DirectoriesGiven",
    /// The agent takes no additional directories. The message names those of the session.
    DIRECTORIES_LEFT_OUT = "DirectoriesLeftOut",
    /// The agent was given all MCP servers.
    SERVERS_GIVEN = "ServersGiven",
    /// The agent was not given an MCP server. The message has the cause for each.
    SERVER_LEFT_OUT = "ServerLeftOut",
    /// The options of the agent have the values that the session wants.
    OPTIONS_SET = "OptionsSet",
    /// The agent does not offer an option or its value, or refused the value. The message names each option.
    OPTION_NOT_SET = "OptionNotSet",
    /// The agent does not answer a request that sets an option. The session continues.
    OPTION_UNANSWERED = "OptionUnanswered",
    /// The workflow is in force.
    IN_FORCE = "InForce",
    /// The workflow's directory has no description: neither `workflow.toml` nor `.ambient/ambient.json`.
    NO_WORKFLOW = "NoWorkflow",
    /// The workflow's description is not valid.
    WORKFLOW_INVALID = "WorkflowInvalid",
    /// The owner has not approved the workflow's description or its script for the environment.
    WORKFLOW_NOT_APPROVED = "WorkflowNotApproved",
    /// The workflow's directory or its description cannot be read.
    WORKFLOW_UNREADABLE = "WorkflowUnreadable",
    /// `PrerequisitesMet` is False, and the launch waits until the prerequisites are met. `Ready` is False while a
    /// launch waits.
    WAITING = "Waiting",
    /// The launch waited for prerequisites longer than its limit.
    WAIT_TIMED_OUT = "WaitTimedOut",
    /// A prerequisite is not met, and the launch does not wait for it.
    PREREQUISITE_FAILED = "PrerequisiteFailed",
    /// `EnvironmentReady` is False while plugins of the launch are compiled or loaded. The message names the
    /// plugins.
    COMPILING_PLUGIN = "CompilingPlugin",
    /// `EnvironmentReady` is Unknown while a login shell or script runs longer than one second. The message names
    /// the shell or script.
    BUILDING = "Building",
    /// `EnvironmentReady` is Unknown while the launch waits for a correction of the mistake in the message.
    CONFIGURATION_INVALID = "ConfigurationInvalid",
    /// A turn waits for the end of a rate limit of the agent's provider.
    RATE_LIMIT_REACHED = "RateLimitReached",
    /// The rate limit is over.
    RATE_LIMIT_OVER = "RateLimitOver",
    /// The agent opens no conversation until a person logs in.
    AUTHENTICATION_REQUIRED = "AuthenticationRequired",
    /// The session has no prerequisites.
    NONE_REQUIRED = "NoneRequired",
    /// All prerequisites are met.
    PASSED = "Passed",
    /// No prerequisite prevents the launch, but the message names warnings.
    PREREQUISITE_WARNS = "PrerequisiteWarns",
    /// The remaining prerequisites are checked after the environment is built.
    AFTER_ENVIRONMENT = "AfterEnvironment",
    /// The launch continues despite missing prerequisites, because a caller forced it.
    FORCED = "Forced",
    /// The degraded launch had to leave out nothing.
    COMPLETE = "Complete",
    /// The launch left out a provider. The message has its error.
    WITHOUT_PROVIDER = "WithoutProvider",
    /// The launch left out an environment script. The message has the cause.
    WITHOUT_SCRIPT = "WithoutScript",
    /// The launch continued without a prerequisite that is not met.
    WITHOUT_PREREQUISITE = "WithoutPrerequisite",
    /// The launch continued without a required secret.
    WITHOUT_SECRET = "WithoutSecret",
    /// The launch continued without a repository.
    WITHOUT_REPOSITORY = "WithoutRepository",
    /// The launch continued without the requested workflow.
    WITHOUT_WORKFLOW = "WithoutWorkflow",
    /// The launch left out parts of different kinds, which the message lists.
    WITHOUT_SEVERAL = "WithoutSeveral",
    /// The working directory exists.
    FRESH = "Fresh",
    /// The working directory can be entered.
    READY = "Ready",
    /// The working directory's path is not absolute. Create the session with an absolute path.
    DIRECTORY_NOT_ABSOLUTE = "DirectoryNotAbsolute",
    /// The working directory does not exist. Restore it, or remove the session.
    DIRECTORY_GONE = "DirectoryGone",
    /// The working directory cannot be entered. Correct its permissions.
    DIRECTORY_CLOSED = "DirectoryClosed",
    /// The file system of the working directory does not respond. Check the mount.
    DIRECTORY_SILENT = "DirectorySilent",
    /// Another directory is at the path of the working directory. Check that it is the right one.
    DIRECTORY_REPLACED = "DirectoryReplaced",
    /// The subject of the condition equals that of the agent's last work.
    UNCHANGED = "Unchanged",
    /// The directory was in no repository, and is in none now.
    NO_REPOSITORY = "NoRepository",
    /// git could not read the repository now or before, so nothing can be compared. The message has the cause.
    REPOSITORY_UNREAD = "RepositoryUnread",
    /// The directory is in no repository any more. Check that it is the right directory.
    REPOSITORY_GONE = "RepositoryGone",
    /// The directory was in no repository and is in one now.
    REPOSITORY_NEW = "RepositoryNew",
    /// The repository has another top directory. Check that it is the right repository.
    REPOSITORY_MOVED = "RepositoryMoved",
    /// The repository has other remotes. Check that it is the right repository.
    REMOTES_CHANGED = "RemotesChanged",
    /// The repository is on another branch. `git switch` returns to the earlier one.
    BRANCH_CHANGED = "BranchChanged",
    /// The branch has other commits than at the end of the agent's last work.
    HEAD_CHANGED = "HeadChanged",
    /// Environment scripts differ from those of the agent's last work. The message names them.
    SCRIPTS_CHANGED = "ScriptsChanged",
    /// The session was used recently.
    USED = "Used",
    /// The session was not used for longer than `staleness.unused_after`.
    UNUSED = "Unused",
    /// Variables of the environment have changed since the agent last worked. The message names them.
    ENVIRONMENT_CHANGED = "EnvironmentChanged",
    /// The agent's program has another name or version than before.
    AGENT_CHANGED = "AgentChanged",
    /// The machine lacks memory, processes or descriptors. The message names the failed call.
    OUT_OF_RESOURCES = "OutOfResources",
    /// Nothing in the environment looks wrong.
    NOTHING_WRONG = "NothingWrong",
    /// The environment has warnings of different kinds, which the message lists.
    SEVERAL_WARNINGS = "SeveralWarnings",
    /// `PATH` has a directory that does not exist.
    PATH_ENTRY_MISSING = "PathEntryMissing",
    /// `PATH` has a directory whose file system does not respond.
    PATH_ENTRY_SILENT = "PathEntrySilent",
    /// `VIRTUAL_ENV` names a Python environment that does not exist.
    VIRTUAL_ENV_GONE = "VirtualEnvGone",
    /// `VIRTUAL_ENV` names a directory whose file system does not respond.
    VIRTUAL_ENV_SILENT = "VirtualEnvSilent",
    /// An environment script cannot be read.
    SCRIPT_UNREADABLE = "ScriptUnreadable",
    /// An environment script has changed since its approval or since the launch.
    SCRIPT_CHANGED = "ScriptChanged",
    /// An environment script has a syntax error.
    SCRIPT_SYNTAX = "ScriptSyntax",
    /// An environment script printed errors although it ended with success.
    SCRIPT_ERRORS = "ScriptErrors",
    /// A project file such as `.nvmrc` requests a version that no step of the pipeline honours.
    PROJECT_FILE_NOT_HONOURED = "ProjectFileNotHonoured",
    /// Environment Modules list loaded modules whose variables or `PATH` entries are missing.
    MODULES_HALF_LOADED = "ModulesHalfLoaded",
    /// A provider dropped a variable of a licence server. The message names the remedy.
    LICENCE_VARIABLE_DROPPED = "LicenceVariableDropped",
    /// agentd's `HOME` differs from the home directory of the user database, which sessions use.
    HOME_DIFFERS = "HomeDiffers",
    /// The agent does not get all limits that the login shell sets.
    LIMITS_WITHHELD = "LimitsWithheld",
    /// The environment begins with the login shell's environment.
    LOGIN_SHELL = "LoginShell",
    /// The environment begins with a terminal's environment.
    TERMINAL = "Terminal",
    /// The environment begins with a stored snapshot.
    STORED = "Stored",
    /// The login shell's `PATH` has lost entries that the last accepted one had.
    PATH_LOST = "PathLost",
    /// Only a weaker attempt could capture the login shell's environment. The message has the cause.
    DEGRADED = "Degraded",
    /// A new capture of the login shell's environment failed, so an earlier one is used.
    STALE = "Stale",
    /// A tool such as direnv refused its file in the session's directory. Allow the file.
    DIRECTORY_REFUSED = "DirectoryRefused",
    /// The login shell could not enter the session's directory, so the home directory's environment is used.
    DIRECTORY_NOT_ENTERED = "DirectoryNotEntered",
    /// The snapshot lacks secrets that no file stores. The message names them.
    SECRETS_MISSING = "SecretsMissing",
    /// The environment was built by its providers.
    BUILT = "Built",
    /// The stored environment could not be restored, so a new one was built.
    BUILT_ANEW = "BuiltAnew",
    /// The stored environment of the launch before was restored.
    GIVEN_AGAIN = "GivenAgain",
    /// The environment was built without a provider that failed and can be skipped.
    PROVIDER_SKIPPED = "ProviderSkipped",
    /// A degraded launch built the environment without the parts in the message.
    BUILT_WITHOUT = "BuiltWithout",
    /// agentd is ending. The launch continues when agentd runs again.
    ENDING = "Ending",
    /// agentd has a defect. Report it with the log.
    INTERNAL = "Internal",
    /// The host of plugins cannot be used.
    PLUGINS_UNUSABLE = "PluginsUnusable",
    /// A plugin could not be loaded. `agentctl plugin show` has the cause.
    PLUGIN_NOT_LOADED = "PluginNotLoaded",
    /// A plugin is suspended after repeated failures. `agentctl reload` enables it.
    PLUGIN_SUSPENDED = "PluginSuspended",
    /// A provider failed. The message has its error.
    PROVIDER_FAILED = "ProviderFailed",
    /// A provider is no longer configured, so its values cannot be renewed.
    PROVIDER_GONE = "ProviderGone",
    /// A provider made a call that its grant does not allow.
    PROVIDER_NOT_GRANTED = "ProviderNotGranted",
    /// A provider returned a change that no environment can hold.
    PROVIDER_ANSWER_INVALID = "ProviderAnswerInvalid",
    /// An environment script is not approved. Read it, then run `agentctl env allow`.
    SCRIPT_NOT_APPROVED = "ScriptNotApproved",
    /// An environment script failed.
    SCRIPT_FAILED = "ScriptFailed",
    /// An environment script ran longer than `environment.deadline`.
    SCRIPT_TIMED_OUT = "ScriptTimedOut",
    /// An environment script has a syntax error, so it was not run.
    SCRIPT_SYNTAX_ERROR = "ScriptSyntaxError",
    /// agentd cannot run scripts of this interpreter.
    SCRIPT_INTERPRETER_UNKNOWN = "ScriptInterpreterUnknown",
    /// The login shell failed, and no earlier snapshot can be used.
    LOGIN_SHELL_FAILED = "LoginShellFailed",
    /// The login shell ran longer than `environment.deadline`.
    LOGIN_SHELL_TIMED_OUT = "LoginShellTimedOut",
    /// The terminal's environment is no longer available. Create the session again from a terminal.
    TERMINAL_GONE = "TerminalGone",
    /// The session's snapshot cannot be read or written.
    SNAPSHOT_NOT_KEPT = "SnapshotNotKept",
    /// The key of a stored environment is missing. Restore the key.
    KEY_UNAVAILABLE = "KeyUnavailable",
    /// A key is to be replaced, but stored environments are not encrypted.
    NOT_ENCRYPTED = "NotEncrypted",
    /// The environment cannot be stored.
    NOT_KEPT = "NotKept",
    /// The stored environment cannot be read. Move its file away for a fresh environment.
    ENVIRONMENT_UNREADABLE = "EnvironmentUnreadable",
    /// All named secrets could be fetched.
    TAKEN = "Taken",
    /// A secret could not be fetched. `agentctl secret check` has the cause.
    SECRET_UNAVAILABLE = "SecretUnavailable",
    /// A new environment would equal the stored one.
    SAME = "Same",
    /// A new environment would differ. The message names the variables.
    DRIFTED = "Drifted",
    /// No new environment could be built for the comparison.
    NOT_BUILT = "NotBuilt",
    /// The environment has values that expire, and all are valid.
    CURRENT = "Current",
    /// The expiring values were renewed, and the agent has the new ones.
    REFRESHED = "Refreshed",
    /// The expiring values could not be renewed. agentd tries again.
    REFRESH_FAILED = "RefreshFailed",
    /// Values have expired, and agentd is requesting new ones.
    EXPIRED = "Expired",
    /// The renewed values had already expired. agentd requests them again.
    EXPIRED_ON_ARRIVAL = "ExpiredOnArrival",
    /// Variables of the running agent expire, and a process cannot get new ones. Resume the session in time.
    VARIABLES_EXPIRING = "VariablesExpiring",
    /// Variables of the running agent have expired. Stop the session and resume it.
    VARIABLES_EXPIRED = "VariablesExpired",
    /// The agent's process runs.
    STARTED = "Started",
    /// The agent's program could not be executed.
    NOT_EXECUTED = "NotExecuted",
    /// The configuration does not have the session's agent, or its command is empty.
    NO_SUCH_AGENT = "NoSuchAgent",
    /// The agent's program is not in the session's `PATH`.
    PROGRAM_NOT_FOUND = "ProgramNotFound",
    /// A directory of `PATH` does not respond, and the agent's program is in no other one.
    PROGRAM_SILENT = "ProgramSilent",
    /// The session's files could not be written.
    FILES_NOT_WRITTEN = "FilesNotWritten",
    /// The control socket of the guarded session could not be created.
    GUEST_SOCKET_NOT_MADE = "GuestSocketNotMade",
    /// The session's keeper failed while it started the agent.
    KEEPER_FAILED = "KeeperFailed",
    /// The agent crashed, and agentd starts it again after a pause.
    RESTARTING = "Restarting",
    /// The agent crashed too often. `agentctl resume` starts it again.
    PARKED = "Parked",
    /// A client stopped the session.
    STOPPED = "Stopped",
    /// The agent's process has ended.
    AGENT_EXITED = "AgentExited",
    /// The agent exceeded its memory limit and was ended.
    OUT_OF_MEMORY = "OutOfMemory",
    /// The agent exceeded its limit of processes and threads.
    TOO_MANY_TASKS = "TooManyTasks",
    /// The agent created a new conversation.
    NEW_CONVERSATION = "NewConversation",
    /// The agent loaded the earlier conversation with its history.
    LOADED = "Loaded",
    /// The agent resumed the earlier conversation.
    RESUMED = "Resumed",
    /// The agent copied the conversation of another session.
    FORKED = "Forked",
    /// The agent can restore no conversation, so it created a new one without the history.
    HISTORY_LOST = "HistoryLost",
    /// `NeedsAttention` is True: the agent asks for a permission. `agentctl answer` answers.
    PERMISSION_REQUESTED = "PermissionRequested",
    /// `NeedsAttention` is True: the agent asks a question that is no permission request. `agentctl answer` answers.
    QUESTION_ASKED = "QuestionAsked",
    /// `NeedsAttention` is True: the launch waits for the answer whether to continue a stale session.
    SESSION_STALE = "SessionStale",
    /// `NeedsAttention` is True: the agent works again after a person has logged in.
    LOGIN_REQUIRED = "LoginRequired",
    /// agentd waits for the next minute, so that the agent keeps its conversations apart.
    WAITING_FOR_THE_MINUTE = "WaitingForTheMinute",
    /// The agent answered `initialize` with an error.
    INITIALIZE_FAILED = "InitializeFailed",
    /// The agent did not answer `initialize` within `limits.initialize`.
    INITIALIZE_TIMED_OUT = "InitializeTimedOut",
    /// The agent did not open the conversation within `limits.open_conversation`.
    CONVERSATION_TIMED_OUT = "ConversationTimedOut",
    /// The agent refused to create a conversation.
    CONVERSATION_REFUSED = "ConversationRefused",
    /// The agent could not restore the conversation. `agentctl resume --new-conversation` creates another.
    CONVERSATION_LOST = "ConversationLost",
    /// The agent lost its open conversation during the launch.
    CONVERSATION_GONE = "ConversationGone",
    /// The agent did not end a cancelled turn within `limits.cancel`.
    CANCEL_IGNORED = "CancelIgnored",
    /// The session's keeper does not respond. Stopping the session ends it with its agent.
    SILENT = "Silent",
    /// The journal can be written again.
    WRITABLE = "Writable",
    /// The disk of the state directory is full. Free space; no record is lost.
    DISK_FULL = "DiskFull",
    /// The quota of the state directory's user is exceeded.
    QUOTA_EXCEEDED = "QuotaExceeded",
    /// The file system of the state directory is read-only.
    READ_ONLY = "ReadOnly",
    /// The journal cannot be written for another reason, which the message has.
    WRITE_FAILED = "WriteFailed",
}

/// The JSON-RPC error code with which an agent requests a login (Agent Client Protocol, "Authentication").
pub const AUTHENTICATION_REQUIRED_CODE: i64 = -32000;

/// Reports whether a launch that failed for this reason may succeed as a degraded launch.
pub fn is_degradable(reason: &str) -> bool {
    matches!(
        reason,
        PREREQUISITE_FAILED
            | WAIT_TIMED_OUT
            | PLUGIN_NOT_LOADED
            | PLUGIN_SUSPENDED
            | PROVIDER_FAILED
            | PROVIDER_NOT_GRANTED
            | PROVIDER_ANSWER_INVALID
            | SCRIPT_NOT_APPROVED
            | SCRIPT_FAILED
            | SCRIPT_TIMED_OUT
            | SCRIPT_SYNTAX_ERROR
            | SCRIPT_INTERPRETER_UNKNOWN
            | LOGIN_SHELL_FAILED
            | LOGIN_SHELL_TIMED_OUT
            | TERMINAL_GONE
            | SECRET_UNAVAILABLE
            | GIT_MISSING
            | CLONE_FAILED
            | REPOSITORY_LOGIN
            | NO_SUCH_BRANCH
            | NO_SUCH_REPOSITORY
            | REPOSITORY_TIMED_OUT
            | PATH_TAKEN
            | REPOSITORY_UNREADABLE
            | REPOSITORY_BUSY
            | RESET_FAILED
            | WORKTREE_FAILED
            | NO_WORKFLOW
            | WORKFLOW_INVALID
            | WORKFLOW_NOT_APPROVED
            | WORKFLOW_UNREADABLE
    )
}

/// Reports whether a condition with this reason describes progress of a launch rather than a fault.
pub fn is_progress(reason: &str) -> bool {
    matches!(reason, WAITING | COMPILING_PLUGIN | BUILDING | WORKING | CONFIGURATION_INVALID)
}
