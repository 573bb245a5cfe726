// Generated from docs/openapi.json by openapi-typescript. To write it anew: make js-generate

export interface components {
    schemas: {
        Acquired: {
            /** Format: int64 */
            epoch: number;
            receipt: components["schemas"]["Receipt"];
            /** @description spawner: this request made the sandbox; attached or rearmed: it existed already */
            role: string;
            sandbox: string;
        };
        Archive: {
            binding?: string;
            hash?: string;
            kind: string;
            provider?: string;
            ref: string;
            /** Format: int64 */
            size?: number;
        };
        ArchiveFile: {
            /** @description sha256: and 64 hexadecimal digits */
            hash: string;
            /**
             * Format: int64
             * @description bytes
             */
            size: number;
        };
        Attachment: {
            /** @enum {string} */
            mode: "exclusive" | "shared" | "read";
            /** @description id of the sandbox */
            sandbox: string;
            /** Format: date-time */
            since: string;
        };
        AuditPrune: {
            /**
             * Format: date-time
             * @description only records older than this
             */
            before?: string;
            /** @description tenant of the log; your own if left out */
            tenant?: string;
            /**
             * Format: int64
             * @description only records up to this number
             */
            upTo?: number;
        };
        AuditPruned: {
            /**
             * Format: int64
             * @description number of records
             */
            removed: number;
            /**
             * Format: int64
             * @description the number of the last of them
             */
            through?: number;
        };
        AuditReport: {
            /**
             * Format: int64
             * @description last record that is covered by a head stored outside the log
             */
            anchored: number;
            fault?: string;
            /** Format: int64 */
            faultSeq?: number;
            /**
             * Format: int64
             * @description the last record that was removed on purpose
             */
            pruned?: number;
            /**
             * Format: date-time
             * @description when that was
             */
            prunedAt?: string;
            /**
             * Format: int64
             * @description number of valid records, from the first that still exists
             */
            records: number;
            sound: boolean;
        };
        Caller: {
            /** @description public part of the key */
            key?: string;
            /** @description whether self-hosted machines can connect to this daemon */
            machines: boolean;
            /** @description whether the caller may manage the nodes of this daemon */
            nodes: boolean;
            /** @description whether this is the owner of the machine */
            owner: boolean;
            tenant: string;
            /** @description whether the caller may list the tenants of this daemon */
            tenants: boolean;
            /** @description permissions: read, exec, write, admin */
            verbs: string[] | null;
        };
        Candidate: {
            fits: boolean;
            provider: string;
            reasons: string[] | null;
        };
        CapabilityDocument: {
            ComputerUse: components["schemas"]["ComputerUseCell"];
            DesktopStream: components["schemas"]["DesktopCell"];
            FileSystem: components["schemas"]["FileSystemCell"];
            Git: components["schemas"]["GitCell"];
            Recording: components["schemas"]["RecordingCell"];
            Terminal: components["schemas"]["TerminalCell"];
            backend: string;
            isolation?: string;
            /** Format: int64 */
            leaseEpoch: number;
            liveness: string;
            /** Format: date-time */
            negotiatedAt: string;
            os: string;
            sessionId: string;
            /** Format: int64 */
            viewerHeartbeatIntervalMs: number;
        };
        Change: {
            /** @description labels to set; null removes one */
            labels?: {
                [key: string]: string | null;
            };
            lifetime?: components["schemas"]["LifetimeChange"];
            /** @description new egress or inline rules, for a sandbox that has such rules; not together with other changes */
            network?: components["schemas"]["Network"];
            /** @description refuse the change if a limit in resources is not enforced */
            requireLimits?: boolean;
            /** @description limits that are left out do not change */
            resources?: components["schemas"]["Resources"];
        };
        Choice: {
            candidates: components["schemas"]["Candidate"][] | null;
            choice?: string;
        };
        CodeContext: {
            /** @description where it started */
            dir: string;
            id: string;
            language: string;
        };
        CodeError: {
            name: string;
            traceback: string;
            value: string;
        };
        CodeEvent: {
            /**
             * Format: int64
             * @description of started: how many executions the context has had
             */
            count?: number;
            /** @description of error */
            exception?: components["schemas"]["CodeError"];
            /** @description of result */
            result?: components["schemas"]["CodeResult"];
            /** @description of stdout and stderr */
            text?: string;
            /** @description of end: the timeout interrupted the code */
            timedOut?: boolean;
            /**
             * @description alive comes every few seconds without another event; end is the last one
             * @enum {string}
             */
            type: "started" | "stdout" | "stderr" | "result" | "error" | "alive" | "end";
        };
        CodeRequest: {
            /** @description the code */
            code: string;
            /** @description id of a context, instead of the default one of the language */
            context?: string;
            /** @description environment for this execution */
            env?: {
                [key: string]: string;
            };
            /** @description python, javascript, typescript, bash, r or java, as far as the image has them; python if it is left out */
            language?: string;
            /**
             * Format: int64
             * @description milliseconds after which the code is interrupted; 0 or left out: never
             */
            timeoutMs?: number;
        };
        CodeResult: {
            /** @description what a figure shows, in the form of E2B's SDKs */
            chart?: unknown;
            /** @description columns of a table */
            data?: unknown;
            html?: string;
            javascript?: string;
            jpeg?: string;
            json?: unknown;
            latex?: string;
            /** @description the value of the last expression */
            main?: boolean;
            markdown?: string;
            pdf?: string;
            png?: string;
            svg?: string;
            text?: string;
        };
        ComputerAction: {
            /**
             * @description screenshot and cursor only look; wait does nothing for durationMs; copy puts a text into the clipboard, and clipboard reads it
             * @enum {string}
             */
            action: "screenshot" | "cursor" | "move" | "click" | "down" | "up" | "drag" | "scroll" | "type" | "key" | "wait" | "copy" | "clipboard";
            /**
             * @description of click, down, up and drag; left if left out
             * @enum {string}
             */
            button?: "left" | "middle" | "right" | "back" | "forward";
            /**
             * Format: int64
             * @description clicks, or presses of a key; 1 if left out
             */
            count?: number;
            /**
             * Format: int64
             * @description of wait, and of key: how long to hold the keys
             */
            durationMs?: number;
            /** @description of key: the keys to press together; of others: keys to hold, such as ctrl */
            keys?: string[] | null;
            /** @description of drag: at least two points */
            path?: components["schemas"]["Point"][] | null;
            /** @description of screenshot: a part of the screen */
            region?: components["schemas"]["Region"];
            /**
             * Format: int64
             * @description of scroll: pixels to the right; 100 are one notch of the wheel, at most 15 notches
             */
            scrollX?: number;
            /**
             * Format: int64
             * @description of scroll: pixels down
             */
            scrollY?: number;
            /** @description of type, at most 10000 characters; of copy, at most 1 MiB, and nothing clears the clipboard */
            text?: string;
            /**
             * Format: int64
             * @description pixels from the left, together with y; where the pointer is if left out
             */
            x?: number;
            /**
             * Format: int64
             * @description pixels from the top
             */
            y?: number;
        };
        ComputerRequest: {
            /** @description in order; the first that fails ends the request */
            actions: components["schemas"]["ComputerAction"][];
            /** @description refuse all actions that are more than looking */
            readOnly?: boolean;
        };
        ComputerResult: {
            /** @description text of the clipboard, when it was read last */
            clipboard?: string;
            /** @description of the last cursor */
            cursor?: components["schemas"]["Point"];
            /** @description the last one */
            screenshot?: components["schemas"]["Screenshot"];
        };
        ComputerUseCell: {
            available: boolean;
            readOnly: boolean;
            reason?: string;
        };
        ConsoleLink: {
            /**
             * Format: date-time
             * @description of the code
             */
            expires: string;
            /** @description with a code that is valid once */
            url: string;
        };
        ConsoleSettings: {
            listen?: string;
        };
        ContextsOutputBody: {
            contexts: components["schemas"]["CodeContext"][] | null;
        };
        CreateRequest: {
            /** @description added to the image's environment of every command; values are not stored in the database */
            env?: {
                [key: string]: string;
            };
            hostname?: string;
            /** @description assigned by the server */
            readonly id?: string;
            /**
             * @description source of the root file system; the machine's own programs if it is left out
             * @example debian:12
             */
            image?: string;
            /**
             * @description the weakest isolation that it may have: none, a kernel of its own, or a virtual machine; that of the provider if it is left out
             * @enum {string}
             */
            isolation?: "none" | "kernel" | "hardware";
            labels?: {
                [key: string]: string;
            };
            lifetime?: components["schemas"]["Lifetime"];
            /** @description the main command, as of a container; none if left out */
            main?: components["schemas"]["MainCommand"];
            /** @description files and directories of the machine; only for its owner */
            mounts?: components["schemas"]["Mount"][] | null;
            /** @description unique among your sandboxes; the id if it is left out */
            name?: string;
            /** @description hosts that the sandbox may reach; none if it is left out */
            network?: components["schemas"]["Network"];
            /** @example linux/amd64 */
            platform?: string;
            /** @description ports to publish on the daemon's machine; only for its owner */
            ports?: components["schemas"]["PublishedPort"][] | null;
            /** @description name of the provider; the daemon's default if it is left out */
            provider?: string;
            /**
             * @description when to fetch the image
             * @enum {string}
             */
            pull?: "missing" | "always" | "never";
            /** @description replace values of secrets of mode env by asterisks in the output of commands */
            redact?: boolean;
            /** @description fail if the provider does not enforce a limit in resources */
            requireLimits?: boolean;
            resources?: components["schemas"]["Resources"];
            /** @description stored secrets that the sandbox uses */
            secrets?: components["schemas"]["SecretRef"][] | null;
            /** @description name or id of a snapshot to start from, instead of an image */
            snapshot?: string;
            /** @description user that runs commands: NAME, UID, NAME:GROUP or UID:GID */
            user?: string;
            /** @description absolute directory where commands start */
            workdir?: string;
            /** @description durable directories, each at its own path */
            workspaces?: components["schemas"]["WorkspaceMount"][] | null;
        };
        Credential: {
            env: string;
            name: string;
            required: boolean;
            secret: boolean;
            with?: string;
        };
        Descriptor: {
            backendId: string;
            credentials?: components["schemas"]["Credential"][] | null;
            desktop: components["schemas"]["DesktopSupport"];
            driver: components["schemas"]["DriverSupport"];
            egress: string;
            fileSystem: components["schemas"]["FileSystemSupport"];
            find?: string;
            fork: boolean;
            git: boolean;
            isolation?: string;
            lifetime: components["schemas"]["LifetimeSupport"];
            name: string;
            nativeBucketMount: boolean;
            os: components["schemas"]["OSList"];
            pause?: string;
            permanent?: boolean;
            persistable: boolean;
            ports: components["schemas"]["PortSupport"];
            price: string;
            recording: boolean;
            runAs: boolean;
            snapshot: components["schemas"]["SnapshotSupport"];
            summary: string;
            terminal: components["schemas"]["TerminalSupport"];
            tier: string;
            units?: components["schemas"]["Unit"][] | null;
            verified: string;
            workspaceRoot: string;
        };
        DesktopCell: {
            acknowledged: boolean;
            client?: string;
            /** Format: date-time */
            expiresAt?: string;
            mode: string;
            reason?: string;
            requiresAcknowledgment: boolean;
            resolution: components["schemas"]["Resolution"];
            shared: boolean;
            sharedSessionIds: string[] | null;
            token?: string;
            transport?: string;
            unredacted: boolean;
            url?: string;
        };
        DesktopInputBody: {
            /**
             * Format: int64
             * @description 96 if left out
             */
            dpi?: number;
            /**
             * Format: int64
             * @description pixels; 800 if left out, or what it has
             */
            height?: number;
            /** @description start a VNC server too, for streams */
            vnc?: boolean;
            /**
             * Format: int64
             * @description pixels, together with height; 1280 if left out, or what it has
             */
            width?: number;
        };
        DesktopState: {
            /** Format: int64 */
            height: number;
            /**
             * Format: int32
             * @description of its VNC server, inside the sandbox; left out if none was started
             */
            port?: number;
            /** Format: int64 */
            width: number;
        };
        DesktopSupport: {
            available: boolean;
            transport?: string;
        };
        Diagnosis: {
            findings: components["schemas"]["Finding"][] | null;
            /** @description no finding is a blocker */
            healthy: boolean;
            node: string;
            /** @description of the program */
            version?: string;
        };
        DiffOutputBody: {
            /** @description by path */
            changes: components["schemas"]["WorkspaceChange"][] | null;
            /** @description there are more changes than are listed */
            more?: boolean;
        };
        DriverSupport: {
            available: boolean;
            reason?: string;
        };
        E2BPlace: {
            address: string;
            domain?: string;
        };
        E2BSettings: {
            domain?: string;
            internet?: boolean;
            listen: string;
        };
        EgressSettingsOutputBody: {
            fingerprints: {
                [key: string]: string;
            };
        };
        Enforcement: {
            enforced: boolean;
            why?: string;
        };
        Envelope: {
            archive?: components["schemas"]["Archive"];
            backend: string;
            binding?: string;
            box?: string;
            files?: components["schemas"]["ArchiveFile"];
            fingerprint?: string;
            spec: components["schemas"]["Spec"];
            state?: unknown;
            /** Format: int64 */
            version: number;
            workspaces?: components["schemas"]["WorkspaceRef"][] | null;
        };
        Epoch: {
            /** Format: date-time */
            began: string;
            /**
             * Format: date-time
             * @description left out while it serves the session
             */
            ended?: string;
            /** Format: int64 */
            epoch: number;
            /** @description kinds and ids of the holders when it began and when it ended */
            holders?: string[] | null;
            provider: string;
            sandbox: string;
            /** @description why it ended */
            why?: string;
        };
        Event: {
            /** Format: int64 */
            argc?: number;
            args?: string[] | null;
            /** Format: int64 */
            bytes?: number;
            /** @description of a failure */
            code?: string;
            /**
             * Format: int32
             * @description of a terminal, when it began
             */
            cols?: number;
            /** @description where the command of a terminal began, if that was asked for */
            cwd?: string;
            /**
             * Format: int64
             * @description how long a command ran, in milliseconds
             */
            durationMs?: number;
            /**
             * Format: int64
             * @description which sandbox of a session, counted from 1
             */
            epoch?: number;
            /** Format: int64 */
            exit?: number;
            /** @description public part of the caller's API key */
            key?: string;
            /** @description labels that the sandbox had then */
            labels?: {
                [key: string]: string;
            };
            /** @description of the sandbox */
            name?: string;
            /** @description the daemon that recorded it */
            node?: string;
            /**
             * @description the operation
             * @example files.read
             */
            op: string;
            /** @description the rule that decided */
            policy?: string;
            program?: string;
            reason?: string;
            /**
             * Format: int64
             * @description seq of the attempted event that this is the outcome of
             */
            ref?: number;
            /** @description id of the request */
            request?: string;
            /** Format: int32 */
            rows?: number;
            sandbox?: string;
            /**
             * Format: int64
             * @description 1, 2, 3, …; the cursor
             */
            seq: number;
            /** @description object of the operation, such as a path */
            subject?: string;
            /** Format: date-time */
            time: string;
            /** @description id of the request's trace */
            trace?: string;
            /** @example sandbox.created */
            type: string;
            /**
             * Format: int32
             * @description user id of the caller on the local socket
             */
            uid?: number;
            /**
             * Format: int64
             * @description of a stream, afterwards
             */
            viewers?: number;
        };
        EventsOutputBody: {
            /** @description oldest first */
            events: components["schemas"]["Event"][] | null;
        };
        ExecRequest: {
            /** @description the program and its arguments */
            args?: string[] | null;
            /** @description instead of args, when they are not UTF-8 */
            argsBase64?: string[] | null;
            /** @description keep running when the caller disconnects */
            background?: boolean;
            dir?: string;
            env?: {
                [key: string]: string;
            };
            /**
             * Format: int64
             * @description how long the command waits for its caller to attach again after a lost connection, without losing output; only over a WebSocket
             */
            holdMs?: number;
            /** @description standard input of the command */
            input?: string;
            /** @description instead of input, when it is not UTF-8 */
            inputBase64?: string;
            /**
             * Format: int64
             * @description bytes of each stream to return, 1 MiB if it is left out
             */
            outputLimit?: number;
            /** @description a script for /bin/sh, instead of args */
            shell?: string;
            /** @description standard input will be sent; only over a WebSocket */
            stdin?: boolean;
            /** Format: int64 */
            timeoutMs?: number;
            /** @description run on a terminal of this size; only over a WebSocket */
            tty?: components["schemas"]["WindowSize"];
            user?: string;
        };
        ExecResult: {
            exit?: components["schemas"]["Exit"];
            /** @description how to allow hosts, if the command failed and its output says that a host could not be reached */
            hint?: string;
            process: components["schemas"]["ProcessInfo"];
            stderr?: components["schemas"]["Output"];
            stdout?: components["schemas"]["Output"];
        };
        Exit: {
            /** Format: int64 */
            code: number;
            detail?: string;
            /** @description exited, signaled, timeout, memory, killed, lifetime, crashed or lost */
            reason: string;
            /** Format: int64 */
            signal?: number;
        };
        ExplainStep: {
            action: string;
            matches: boolean;
            rule: string;
            /** @description why it does not match */
            why?: string;
        };
        Explanation: {
            allow: boolean;
            /** @description whether only the host name is checked, so that everything the host serves can be reached */
            hostOnly: boolean;
            /** @description names of the secrets that are added */
            inject?: string[] | null;
            /** @description whether TLS is terminated and every request is checked */
            inspect: boolean;
            limits?: components["schemas"]["RuleLimits"];
            message: string;
            /** @description what the policies of the machine decide */
            operator?: string[] | null;
            /** @description the path that is forwarded */
            path?: string;
            reason: string;
            /** @description whether the name has an address in the sandbox */
            resolves: boolean;
            /** @description the rule that decides */
            rule?: string;
            /** @description the rules for the host, in order, up to the one that decides */
            steps: components["schemas"]["ExplainStep"][] | null;
        };
        Fault: {
            field: string;
            message: string;
        };
        FileInfo: {
            /** Format: int32 */
            gid: number;
            /** Format: int64 */
            identity?: number;
            /** Format: date-time */
            modTime: string;
            /** Format: int32 */
            mode: number;
            /** Format: int64 */
            nlink?: number;
            path: string;
            /** Format: int64 */
            size: number;
            target?: string;
            /** @enum {string} */
            type: "file" | "dir" | "symlink" | "fifo" | "socket" | "device";
            /** Format: int32 */
            uid: number;
        };
        FileSystemCell: {
            available: boolean;
            pathSep: string;
            readOnly: boolean;
            reason?: string;
            root: string;
            treeMode: string;
        };
        FileSystemSupport: {
            available: boolean;
            readOnly: boolean;
        };
        Filter: {
            /**
             * Format: int64
             * @description for size: the maximum; for regex: how much of a body is buffered and searched, 1 MiB if left out
             */
            bytes?: number;
            /**
             * @description both if left out
             * @enum {string}
             */
            direction?: "request" | "response" | "both";
            /** @description for regex: RE2, searched in the body */
            pattern?: string;
            /** @enum {string} */
            type: "regex" | "size" | "content_type";
            /** @description for content_type: the allowed types, such as application/json or text/* */
            types?: string[] | null;
        };
        Finding: {
            /** @description what to do about it */
            fix?: string;
            message: string;
            /** @enum {string} */
            severity: "ok" | "note" | "warning" | "blocker";
            subject: string;
        };
        ForkOutputBody: {
            sandboxes: components["schemas"]["Sandbox"][] | null;
        };
        ForkRequest: {
            /**
             * Format: int64
             * @default 1
             */
            count: number;
            /** @description added to those of the parent */
            labels?: {
                [key: string]: string;
            };
            /** @description prefix of their names, PREFIX-1 and so on; their ids if it is left out */
            prefix?: string;
        };
        GitBlame: {
            /** @description by sha; one of zeros only is what is not committed yet */
            commits: {
                [key: string]: components["schemas"]["GitBlameCommit"];
            };
            lines: components["schemas"]["GitBlameLine"][] | null;
            truncated?: boolean;
        };
        GitBlameCommit: {
            author: components["schemas"]["GitPerson"];
            subject: string;
        };
        GitBlameLine: {
            /** @description sha */
            commit: string;
            /**
             * Format: int64
             * @description number of the line
             */
            no: number;
            text: string;
        };
        GitBlob: {
            content: string;
            /**
             * Format: int64
             * @description bytes of the whole file
             */
            size: number;
            /** @description the file has more than was asked for */
            truncated?: boolean;
        };
        GitCell: {
            available: boolean;
            reason?: string;
            repos: string[] | null;
        };
        GitCommit: {
            author: components["schemas"]["GitPerson"];
            body?: string;
            committer: components["schemas"]["GitPerson"];
            parents: string[] | null;
            /** @description branches and tags that are at this commit, such as refs/heads/main */
            refs: string[] | null;
            sha: string;
            shortSha: string;
            subject: string;
        };
        GitDiff: {
            files: components["schemas"]["GitFileDiff"][] | null;
            /** @description there are more files, or more untracked ones */
            truncated?: boolean;
        };
        GitFileDiff: {
            /**
             * Format: int64
             * @description lines; 0 for a binary file
             */
            additions: number;
            binary?: boolean;
            /** Format: int64 */
            deletions: number;
            hunks: components["schemas"]["GitHunk"][] | null;
            /** @description a picture, by its name */
            image?: boolean;
            newMode?: string;
            /** @description in octal, as 100644; left out if there was no file */
            oldMode?: string;
            /** @description of a renamed or copied file */
            oldPath?: string;
            path: string;
            status: string;
            /** @description the changes are too large, so there are no hunks */
            truncated?: boolean;
        };
        GitFileStatus: {
            conflicted?: boolean;
            /** @description the index compared with the commit */
            index?: string;
            /** @description of a renamed or copied file */
            oldPath?: string;
            path: string;
            /** @description the working tree compared with the index */
            worktree?: string;
        };
        GitHunk: {
            /** @description what git thinks the hunk is in, such as a function */
            header?: string;
            lines: components["schemas"]["GitLine"][] | null;
            /** Format: int64 */
            newLines: number;
            /** Format: int64 */
            newStart: number;
            /** Format: int64 */
            oldLines: number;
            /** Format: int64 */
            oldStart: number;
        };
        GitLine: {
            /** Format: int64 */
            newNo?: number;
            /** @description the file ends here, without an end of the line */
            noEnd?: boolean;
            /**
             * Format: int64
             * @description number of the line before; left out for an added one
             */
            oldNo?: number;
            /** @description without the end of the line */
            text: string;
            /** @enum {string} */
            type: "context" | "add" | "del";
        };
        GitLog: {
            commits: components["schemas"]["GitCommit"][] | null;
            /** @description there are earlier commits */
            more?: boolean;
        };
        GitPerson: {
            email: string;
            name: string;
            /** Format: date-time */
            time: string;
        };
        GitShow: {
            /** @description if a file was asked for */
            blob?: components["schemas"]["GitBlob"];
            commit: components["schemas"]["GitCommit"];
            /** @description if no file was asked for */
            diff?: components["schemas"]["GitDiff"];
        };
        GitStatus: {
            /**
             * Format: int64
             * @description commits that the upstream lacks
             */
            ahead: number;
            /**
             * Format: int64
             * @description commits of the upstream that are missing here
             */
            behind: number;
            /** @description the current commit; empty before the first one */
            commit?: string;
            detached?: boolean;
            files: components["schemas"]["GitFileStatus"][] | null;
            /** @description the current branch; empty if HEAD is detached */
            head?: string;
            isRepo: boolean;
            /** @description the top directory of the working tree; paths are relative to it */
            root?: string;
            truncated?: boolean;
            upstream?: string;
        };
        Holder: {
            /** Format: date-time */
            beat: string;
            id: string;
            kind: string;
            subject?: string;
        };
        HolderRef: {
            /**
             * Format: int64
             * @description fail with the code stale if the sandbox is at another epoch
             */
            epoch?: number;
            /** @description unique among the holders of that kind */
            holder: string;
            /**
             * @description viewers and operators expire without heartbeats; operator if it is left out
             * @enum {string}
             */
            kind?: "turn" | "viewer" | "operator";
        };
        ImageUse: {
            /** @description description of the sandbox, snapshot or template that needs it */
            by: string;
            /** @description its digest, else its name */
            image: string;
        };
        ImageUsesOutputBody: {
            uses: components["schemas"]["ImageUse"][] | null;
        };
        InjectPart: {
            /** @description audience of an identity token of the sandbox that goes here: a short-lived JSON Web Token, signed by the daemon */
            audience?: string;
            /** @description name of the secret whose value goes here */
            secret?: string;
            /** @description as it is */
            text?: string;
        };
        Injection: {
            /** @description for sigv4: the id that belongs to the secret key */
            accessKey?: string;
            /** @description of the header's value, with {} in place of the secret; {} if left out */
            format?: string;
            /** @enum {string} */
            mode: "header" | "bearer" | "basic" | "query" | "sigv4" | "parts";
            /** @description of the header or query parameter */
            name?: string;
            /** @description for parts: texts, secrets and identity tokens that make up the header's value, in order */
            parts?: components["schemas"]["InjectPart"][] | null;
            /** @description for sigv4 */
            region?: string;
            /** @description name of the secret; left out for parts */
            secret?: string;
            /** @description for sigv4 */
            service?: string;
            /** @description for sigv4: name of the secret that holds the session token */
            sessionToken?: string;
            /** @description for basic */
            username?: string;
        };
        Key: {
            /** Format: date-time */
            created: string;
            /**
             * Format: date-time
             * @description never if it is left out
             */
            expires?: string;
            /** @description its public part */
            id: string;
            name?: string;
            /** @description of a page of the console that a link of the owner of the machine signed in */
            page?: boolean;
            /** Format: date-time */
            revoked?: string;
            /** @description the key itself; only in the response that creates it */
            token?: string;
            /** @description permissions: read, exec, write, admin */
            verbs: string[] | null;
        };
        KeysOutputBody: {
            /** @description oldest first */
            keys: components["schemas"]["Key"][] | null;
        };
        KillInputBody: {
            /**
             * Format: int64
             * @description number of the signal on Linux
             */
            signal: number;
        };
        LeaseInfo: {
            /** Format: int64 */
            epoch: number;
            /** Format: date-time */
            expires?: string;
            /** @description the latest epochs, the present one first; not in lists */
            history?: components["schemas"]["Epoch"][] | null;
            holders: components["schemas"]["Holder"][] | null;
            /** Format: date-time */
            idle?: string;
            provider?: string;
            sandbox?: string;
            state: string;
        };
        Lifetime: {
            /**
             * @description pause in memory, sleep on disk, stop and keep the files, or delete; stop if it is left out
             * @enum {string}
             */
            idleAction?: "pause" | "sleep" | "stop" | "delete";
            /**
             * Format: int64
             * @description how long it may be unused before idleAction, in milliseconds; no limit if it is left out
             */
            idleMs?: number;
            /**
             * @description what happens then; delete if it is left out
             * @enum {string}
             */
            timeoutAction?: "sleep" | "stop" | "delete";
            /**
             * Format: int64
             * @description how long the sandbox may run, in milliseconds; no limit if it is left out
             */
            timeoutMs?: number;
            /** @description resume a paused sandbox when it is used, even if a caller paused it */
            wakes?: boolean;
        };
        LifetimeChange: {
            /** @enum {string} */
            idleAction?: "pause" | "sleep" | "stop" | "delete";
            /**
             * Format: int64
             * @description in milliseconds; 0: never idle
             */
            idleMs?: number;
            /** @enum {string} */
            timeoutAction?: "sleep" | "stop" | "delete";
            /**
             * Format: int64
             * @description how long the sandbox may run from now on, in milliseconds; 0: no limit
             */
            timeoutMs?: number;
            wakes?: boolean;
        };
        LifetimeSupport: {
            /** Format: int64 */
            hard?: number;
            idleKiller: boolean;
            lockFreeResume: boolean;
            rollover: boolean;
            suspend: boolean;
        };
        Limits: {
            /**
             * Format: int64
             * @description sandboxes that are not gone
             */
            boxes?: number;
            /**
             * Format: double
             * @description processors' worth of time of the sandboxes that may run
             */
            cpus?: number;
            /**
             * Format: int64
             * @description bytes of the writable layers of all sandboxes that are not gone
             */
            disk?: number;
            /**
             * Format: int64
             * @description commands that may start at once; one second's worth, at least 1, if it is left out
             */
            execBurst?: number;
            /**
             * Format: double
             * @description commands started per second
             */
            execRate?: number;
            /**
             * Format: int64
             * @description bytes of memory of the sandboxes that may run
             */
            memory?: number;
            /**
             * Format: int64
             * @description bytes at once, at least 64 KiB; one second's worth if it is left out
             */
            outputBurst?: number;
            /**
             * Format: int64
             * @description bytes of command output per second; more is slowed down
             */
            outputRate?: number;
            /**
             * Format: int64
             * @description bytes of all snapshots, including those of stopped sandboxes
             */
            snapshotBytes?: number;
            /**
             * Format: int64
             * @description snapshots with a name
             */
            snapshots?: number;
            /**
             * Format: double
             * @description hours per calendar month (UTC) that sandboxes of sessions may exist, in total; running turns continue
             */
            warmHours?: number;
        };
        LimitsChange: {
            /** Format: int64 */
            boxes?: number;
            /** Format: double */
            cpus?: number;
            /** Format: int64 */
            disk?: number;
            /** Format: int64 */
            execBurst?: number;
            /** Format: double */
            execRate?: number;
            /** Format: int64 */
            memory?: number;
            /** Format: int64 */
            outputBurst?: number;
            /** Format: int64 */
            outputRate?: number;
            /** Format: int64 */
            snapshotBytes?: number;
            /** Format: int64 */
            snapshots?: number;
            /** Format: double */
            warmHours?: number;
        };
        ListOutputBody: {
            /** @description the cursor of the next page; empty at the end */
            next?: string;
            /** @description newest first */
            sandboxes: components["schemas"]["Sandbox"][] | null;
        };
        Load: {
            /** @description names of the images that are stored there */
            images: string[] | null;
            /**
             * @description what isolates a new sandbox there; missing: it is not known
             * @enum {string}
             */
            isolation?: "none" | "kernel" | "hardware";
            /**
             * Format: int64
             * @description free memory of the machine, in bytes
             */
            memoryFree: number;
            /**
             * Format: int64
             * @description memory that the running sandboxes may use, in bytes
             */
            memoryReserved: number;
            /**
             * Format: int64
             * @description memory of the machine, in bytes
             */
            memoryTotal: number;
            /**
             * Format: int64
             * @description how many there are
             */
            sandboxes: number;
        };
        Machine: {
            /** Format: date-time */
            approved?: string;
            arch?: string;
            /** @description what its owner agreed to, as it said last; of a pending machine, what it asks for; of an invited one, what its token allows */
            consents?: ("sandboxes" | "whole-machine" | "screen" | "updates")[] | null;
            /** Format: date-time */
            created?: string;
            /** @description where commands of the mode whole-machine run */
            directory?: string;
            /**
             * Format: date-time
             * @description when a pending or invited machine is forgotten
             */
            expires?: string;
            id: string;
            /** @description the public key that it proves to have */
            key?: string;
            /**
             * @description whether it answers
             * @enum {string}
             */
            liveness: "online" | "reconnecting" | "offline";
            /**
             * @description what its owner offers: sandboxes, or commands with all rights of the owner
             * @enum {string}
             */
            mode: "sandboxes" | "whole-machine";
            /** @description what its owner calls it */
            name: string;
            os?: string;
            /** @description the provider that makes sandboxes there; none before it is approved */
            provider?: string;
            /** Format: date-time */
            revoked?: string;
            /**
             * Format: date-time
             * @description when it was heard of last
             */
            seen?: string;
            /** @enum {string} */
            state: "pending" | "invited" | "active" | "revoked";
            /** @description of its program */
            version?: string;
        };
        MachineApproval: {
            /**
             * @description the code that the machine shows
             * @example ABCD-EFGH
             */
            code: string;
            /** @description what the caller takes of what the machine's owner agreed to; whole-machine must be taken, and without screen it is not shared */
            consents?: ("sandboxes" | "whole-machine" | "screen" | "updates")[] | null;
            /** @description the same as whole-machine in consents */
            wholeMachine?: boolean;
        };
        MachineToken: {
            machine: components["schemas"]["Machine"];
            /** @description only in this response */
            token: string;
        };
        MachinesOutputBody: {
            /** @description oldest first */
            machines: components["schemas"]["Machine"][] | null;
        };
        MainCommand: {
            /** @description the program and its arguments; the image's command if left out */
            args?: string[] | null;
            /** @description replaces the image's entrypoint; empty for none */
            entrypoint?: string;
            /**
             * Format: int64
             * @description maximum number of restarts; no maximum if left out
             */
            maxRestarts?: number;
            /** @description id of the running command, or of the last one */
            readonly process?: string;
            /** @description remove the sandbox when the command has ended */
            remove?: boolean;
            /**
             * @description when to start it again; never if left out
             * @enum {string}
             */
            restart?: "no" | "on-failure" | "always";
            /**
             * Format: int64
             * @description how often it was started again
             */
            readonly restarts?: number;
            /** @description keep its standard input open for clients that attach */
            stdin?: boolean;
            tty?: components["schemas"]["WindowSize"];
        };
        MkdirInputBody: {
            /** Format: int32 */
            mode?: number;
            owner?: string;
            /** @description make missing parents; an existing directory is success */
            parents?: boolean;
            path: string;
        };
        Mount: {
            readOnly?: boolean;
            source: string;
            target: string;
        };
        MoveInputBody: {
            from: string;
            overwrite?: boolean;
            to: string;
        };
        Needs: {
            desktop?: boolean;
            egress?: string;
            fork?: boolean;
            images?: boolean;
            isolated?: boolean;
            isolation?: string;
            limits?: string[] | null;
            mounts?: boolean;
            ownFiles?: boolean;
            pause?: string;
            ports?: boolean;
            price?: string;
            provider?: string;
            snapshot?: string;
            user?: boolean;
        };
        Network: {
            egress?: string[] | null;
            inline?: components["schemas"]["Profile"];
            profile?: string;
        };
        NewCodeContext: {
            /** @description its working directory; that of the interpreter if it is left out */
            dir?: string;
            /** @description python if it is left out */
            language?: string;
        };
        NewKey: {
            /**
             * Format: int64
             * @description from now, in milliseconds; never if it is left out
             */
            expiresMs?: number;
            /** @description a description for people */
            name?: string;
            /** @description tenant of the key; a tenant other than your own only for the owner of the machine */
            tenant?: string;
            /** @description permissions: read, exec, write, admin */
            verbs: string[] | null;
        };
        NewMachineToken: {
            /** @description what the machine's owner may agree to, beside the mode sandboxes */
            consents?: ("sandboxes" | "whole-machine" | "screen" | "updates")[] | null;
            /** @description name of the machine */
            name: string;
            /** @description the same as whole-machine in consents */
            wholeMachine?: boolean;
        };
        NewPortToken: {
            /**
             * Format: int64
             * @description lifetime of the token in milliseconds; a day if it is left out
             */
            expiresMs?: number;
            /** @description ports that the token is valid for; all if left out */
            ports?: number[] | null;
        };
        NewRecording: {
            /**
             * Format: int64
             * @description of a desktop: pictures per second, 15 if it is left out
             */
            fps?: number;
            /** @description also record what viewers type, even if the terminal does not show it, such as passwords */
            input?: boolean;
            /**
             * @description what is recorded; a terminal if it is left out
             * @enum {string}
             */
            kind?: "terminal" | "desktop";
            /**
             * Format: int64
             * @description seconds after which it ends; if it is left out, a day, and of a desktop ten minutes
             */
            maxSeconds?: number;
            /** @description id of a background command on a terminal; the login shell that viewers share if it is left out */
            process?: string;
            /** @description of the terminal of a new login shell */
            size?: components["schemas"]["WindowSize"];
            /** @description a title for players */
            title?: string;
        };
        NewSecret: {
            /** @description sandboxes may get the value itself */
            allowEnv?: boolean;
            description?: string;
            /** @description hosts that it may be sent to, such as api.example.com; if left out, only stored profiles may send it, to the hosts in their rules */
            hosts?: string[] | null;
            labels?: {
                [key: string]: string;
            };
            name: string;
            /** @description where the daemon reads the value from instead: env:NAME or file:/PATH; only for the owner of the machine */
            source?: string;
            /** @description the value, if it is UTF-8 */
            value?: string;
            /** @description the value, at most 64 KiB */
            valueBase64?: string;
        };
        NewSession: {
            /** @description sessions with the same group share one sandbox; not shared if it is left out */
            group?: string;
            /** @description acquire the sandbox for this holder; without a holder, the sandbox is made when it is first used */
            holder?: components["schemas"]["HolderRef"];
            /**
             * @description what to do when there is a session of that name; fail if it is left out
             * @enum {string}
             */
            ifExists?: "fail" | "attach";
            /** @description added to the labels of the spec; they apply to the sandboxes and the usage of the session */
            labels?: {
                [key: string]: string;
            };
            /** @description unique among your sessions; the id if it is left out */
            name?: string;
            /** @description pause the sandbox, instead of ending it, when no holder is left, if the provider can do that */
            pauseOnExit?: boolean;
            /**
             * @description on-turn records the desktop during every turn that uses it; manual if it is left out
             * @enum {string}
             */
            record?: "manual" | "on-turn";
            spec?: components["schemas"]["Spec"];
        };
        NewStream: {
            /**
             * @description terminal: a terminal that viewers share; desktop: a VNC server; port: the bytes of a port
             * @enum {string}
             */
            kind: "terminal" | "desktop" | "port";
            /** @description also return a one-time code, for a link that a browser opens without a key */
            link?: boolean;
            /**
             * @description view is the default; in it, the daemon drops keyboard, pointer and clipboard of RFB
             * @enum {string}
             */
            mode?: "view" | "control";
            /**
             * Format: int32
             * @description port inside the sandbox; 5900 for a desktop if it is left out, where the desktop is started if it does not run
             */
            port?: number;
            /** @description id of a background command on a terminal; a login shell in the workspace if it is left out */
            process?: string;
            /** @description of the terminal of a new login shell */
            size?: components["schemas"]["WindowSize"];
            /**
             * Format: int64
             * @description seconds during which the token opens sockets; 120 if it is left out
             */
            ttl?: number;
        };
        NewTenant: {
            id: string;
            limits?: components["schemas"]["Limits"];
        };
        NewWorkspace: {
            /** @description S3 bucket that holds the workspace, one that the owner of the machine has configured; without versions */
            bucket?: string;
            /** @description encrypt what is stored with a key of the daemon */
            encrypted?: boolean;
            /**
             * Format: int64
             * @description bytes that one version may hold; more cannot be persisted
             */
            maxBytes?: number;
            name: string;
        };
        Node: {
            /** @description as it was at the last answer */
            load?: components["schemas"]["Load"];
            /** @description it was removed while it did not answer */
            lost?: boolean;
            name: string;
            /**
             * Format: int64
             * @description sandboxes that this daemon has there
             */
            placed: number;
            /** @description the provider that makes sandboxes there */
            provider: string;
            /** @description why it gets no new sandboxes */
            reason?: string;
            /** Format: date-time */
            removed?: string;
            /**
             * Format: date-time
             * @description when it answered last
             */
            seen?: string;
            /** @enum {string} */
            state: "ready" | "unreachable" | "cordoned" | "draining" | "removed";
            url: string;
        };
        NodeChange: {
            /** @description whether it gets no new sandboxes; false also ends a drain, and takes back a removed node */
            cordoned?: boolean;
        };
        NodeDrain: {
            /** @description end the sandboxes that belong to no session */
            force?: boolean;
        };
        NodeDrained: {
            /** @description sandboxes without a session that were ended */
            ended: components["schemas"]["NodeSandbox"][] | null;
            /** @description sandboxes that are still there */
            kept: components["schemas"]["NodeSandbox"][] | null;
            /** @description sessions that were moved */
            moved: components["schemas"]["NodeMoved"][] | null;
            node: string;
        };
        NodeMoved: {
            receipt: components["schemas"]["Receipt"];
            session: string;
            tenant: string;
        };
        NodeSandbox: {
            name: string;
            /** @description why it is still there */
            reason?: string;
            sandbox: string;
            session?: string;
            tenant: string;
        };
        NodesOutputBody: {
            /** @description by name */
            nodes: components["schemas"]["Node"][] | null;
        };
        NoteInputBody: {
            /** @description kept with the version */
            note?: string;
        };
        OSList: {
            default: string;
            supported: string[] | null;
        };
        Opened: {
            created: boolean;
            /** @description of the sandbox, if a holder was given */
            receipt?: components["schemas"]["Receipt"];
            session: components["schemas"]["Session"];
        };
        Output: {
            data: string;
            /**
             * Format: int64
             * @description bytes that are missing at the end
             */
            dropped?: number;
            /** @enum {string} */
            encoding: "utf-8" | "base64";
            truncated: boolean;
        };
        PatchRequest: {
            /** @description only check whether the patch fits */
            dryRun?: boolean;
            /** @description a unified diff, or a patch in the format of the apply_patch tool */
            patch: string;
            /** @description absolute path of the directory that names in the patch are relative to */
            path: string;
        };
        PatchResult: {
            files: components["schemas"]["PatchedFile"][] | null;
        };
        PatchedFile: {
            /** Format: int64 */
            additions: number;
            /** Format: int64 */
            deletions: number;
            /** @description of a renamed or copied file */
            oldPath?: string;
            /** @description as in the patch */
            path: string;
            /** @enum {string} */
            status: "added" | "modified" | "deleted" | "renamed" | "copied";
        };
        PauseInputBody: {
            /** @description pause on disk, without memory and processes; otherwise the processes are frozen in memory */
            toDisk?: boolean;
        };
        Point: {
            /** Format: int64 */
            x: number;
            /** Format: int64 */
            y: number;
        };
        Policies: {
            /** @description of the files that apply; left out if there are no policies */
            digest?: string;
            /** Format: date-time */
            loaded?: string;
            policies: components["schemas"]["Policy"][] | null;
            /** @description why the present files are not valid, so that the policies from before still apply; only for the owner of the machine */
            problem?: string;
            /** @description the file or directory; only for the owner of the machine */
            source?: string;
        };
        Policy: {
            /** Format: double */
            cpus?: number;
            description?: string;
            /**
             * Format: int64
             * @description bytes
             */
            disk?: number;
            /** @description profile that must allow every connection as well */
            egress?: components["schemas"]["Profile"];
            file: string;
            images?: string[] | null;
            /** @description the weakest isolation that sandboxes may have */
            isolation?: string;
            /** @description patterns of the labels of the sandboxes that it applies to; a missing label is empty */
            labels?: {
                [key: string]: string[] | null;
            };
            /**
             * Format: int64
             * @description in milliseconds
             */
            lifetimeMs?: number;
            /** @description line numbers of its fields in the file */
            lines: {
                [key: string]: number;
            };
            /**
             * Format: int64
             * @description bytes
             */
            memory?: number;
            mounts?: string[] | null;
            name: string;
            network?: boolean;
            onUnenforceable?: string;
            /** Format: int64 */
            pids?: number;
            /** @description values of secrets are removed from the output of commands */
            redact?: boolean;
            secretModes?: string[] | null;
            secrets?: string[] | null;
            /** @description allowed as well, if signed */
            signedImages?: components["schemas"]["SignedImage"][] | null;
            /** @description patterns of the tenants that it applies to; all if left out */
            tenants?: string[] | null;
        };
        PolicyAnswer: {
            allow: boolean;
            /** @description profiles that must allow its connections as well */
            ceilings: components["schemas"]["PolicyCeiling"][] | null;
            /** @description result of every rule that applies to it */
            findings: components["schemas"]["PolicyFinding"][] | null;
            /** @description the weakest isolation that it may have; left out if no policy says */
            isolation?: string;
            /**
             * Format: int64
             * @description its longest lifetime, in milliseconds
             */
            lifetimeMs?: number;
            /** @description the lowest limits that apply to it; zero: none */
            limits: components["schemas"]["Resources"];
            /** @description why it would be refused */
            message?: string;
            /** @description rule that would refuse it, as POLICY.FIELD */
            rule?: string;
        };
        PolicyCeiling: {
            policy: string;
            profile: components["schemas"]["Profile"];
        };
        PolicyFinding: {
            asked: string;
            file: string;
            limit: string;
            /** Format: int64 */
            line: number;
            ok: boolean;
            /** @description POLICY.FIELD */
            rule: string;
        };
        PortSupport: {
            kind: string;
            onDemand: boolean;
        };
        PortToken: {
            /** Format: date-time */
            expires: string;
            /** @description for the header Atoll-Token; shown only now */
            token: string;
        };
        Preview: {
            /**
             * Format: date-time
             * @description when the token expires
             */
            expires?: string;
            /** @description request header for the token */
            header?: string;
            /**
             * Format: int32
             * @description port inside the sandbox
             */
            port: number;
            /** @description requests need no token */
            public: boolean;
            /** @description only in the response that creates the preview */
            token?: string;
            url: string;
        };
        PreviewRequest: {
            /**
             * Format: int32
             * @description port inside the sandbox
             */
            port: number;
            /** @description the URL works without a token; needs the permission admin */
            public?: boolean;
        };
        PreviewsOutputBody: {
            /** @description by port, without tokens */
            previews: components["schemas"]["Preview"][] | null;
        };
        Problem: {
            code: string;
            detail?: string;
            /** @description what is wrong with the fields of the request */
            faults?: components["schemas"]["Fault"][] | null;
            hint?: string;
            op?: string;
            /** @description for an internal error: id of the request in the log of the daemon */
            request?: string;
            /** @description policy rule that refused it, as POLICY.FIELD */
            rule?: string;
            /** Format: int64 */
            status: number;
            subject?: string;
            title: string;
        };
        ProcessInfo: {
            args: string[] | null;
            background?: boolean;
            exit?: components["schemas"]["Exit"];
            id: string;
            /** Format: int64 */
            pid: number;
            running: boolean;
            /** Format: date-time */
            started: string;
            tty?: boolean;
        };
        ProcessesOutputBody: {
            /** @description oldest first */
            processes: components["schemas"]["ProcessInfo"][] | null;
        };
        Profile: {
            /**
             * @description what happens when no rule matches; deny if left out
             * @enum {string}
             */
            default?: "allow" | "deny";
            description?: string;
            /** @description name servers, as ADDRESS or ADDRESS:PORT; those of the machine if left out */
            dnsServers?: string[] | null;
            /** @description false denies everything, whatever the rules say */
            internet?: boolean;
            /** @description unique among the profiles of the tenant; empty for an inline profile */
            name?: string;
            /** @description SOCKS5 proxy for all connections */
            proxy?: components["schemas"]["UpstreamProxy"];
            /** @description in order: the first that matches decides */
            rules?: components["schemas"]["Rule"][] | null;
        };
        ProfileTest: {
            /** @description GET if it is left out */
            method?: string;
            /**
             * @description with the scheme https, http, wss, ws, or tcp for a bare connection
             * @example https://api.example.com/v1
             */
            url: string;
        };
        ProfilesOutputBody: {
            /** @description by name */
            profiles: components["schemas"]["StoredProfile"][] | null;
        };
        Provider: {
            available: boolean;
            binding?: string;
            capabilities: {
                [key: string]: boolean;
            };
            default: boolean;
            descriptor: components["schemas"]["Descriptor"];
            images?: boolean;
            isolates: boolean;
            limits?: {
                [key: string]: components["schemas"]["Enforcement"];
            };
            name: string;
            problem?: string;
            sharesFiles?: boolean;
            summary: string;
            version?: string;
            warning?: string;
        };
        ProvidersOutputBody: {
            providers: components["schemas"]["Provider"][] | null;
        };
        ProxyTLS: {
            /** @description PEM certificates, trusted in place of the machine's */
            ca?: string;
            /** @description name in the certificate; the host of the address if left out */
            serverName?: string;
        };
        PruneBuildsInputBody: {
            /**
             * Format: int64
             * @description only entries that no build has used for this time, in milliseconds
             */
            unusedMs?: number;
        };
        PruneBuildsOutputBody: {
            /**
             * Format: int64
             * @description bytes
             */
            freed: number;
        };
        PruneInputBody: {
            /** @description only snapshots with all of these labels */
            labels?: {
                [key: string]: string;
            };
        };
        PruneWorkspaceInputBody: {
            /**
             * Format: int64
             * @description number of newest versions to keep
             */
            keepLast?: number;
            /**
             * Format: int64
             * @description keep all versions younger than this, in milliseconds
             */
            keepWithinMs?: number;
        };
        Publication: {
            /**
             * @description IP address of the daemon's machine to listen on; 127.0.0.1 if left out
             * @example 127.0.0.1
             */
            address?: string;
            /** @description why the daemon does not listen now; it tries again */
            error?: string;
            /**
             * Format: int32
             * @description port there; a free port if left out
             */
            hostPort?: number;
            /** @description of the sandbox */
            name: string;
            /**
             * Format: int32
             * @description port inside the sandbox
             */
            port: number;
            sandbox: string;
        };
        PublishedOutputBody: {
            /** @description by the names of the sandboxes */
            ports: components["schemas"]["Publication"][] | null;
        };
        PublishedPort: {
            /**
             * @description IP address of the daemon's machine to listen on; 127.0.0.1 if left out
             * @example 127.0.0.1
             */
            address?: string;
            /**
             * Format: int32
             * @description port there; a free port if left out
             */
            hostPort?: number;
            /**
             * Format: int32
             * @description port inside the sandbox
             */
            port: number;
        };
        ReadyOutputBody: {
            /** @enum {string} */
            status: "ok";
        };
        Receipt: {
            /** Format: int64 */
            epoch: number;
            from?: components["schemas"]["ReceiptFrom"];
            lost?: string[] | null;
            outcome: string;
            provider: string;
            sandbox: string;
            /** Format: date-time */
            time?: string;
            why?: string;
        };
        ReceiptFrom: {
            archive?: components["schemas"]["Archive"];
            workspaces?: components["schemas"]["WorkspaceRef"][] | null;
        };
        Recording: {
            /** Format: date-time */
            ended?: string;
            /** @enum {string} */
            format: "asciicast-v2" | "h264-mp4";
            /**
             * Format: int64
             * @description of a desktop: pictures per second
             */
            fps?: number;
            id: string;
            /** @description it contains what viewers typed */
            input?: boolean;
            /** @enum {string} */
            kind: "terminal" | "desktop";
            /**
             * Format: int64
             * @description seconds after which it ends
             */
            maxSeconds: number;
            /** @description of the sandbox */
            name: string;
            /** @description the command in the terminal; empty for a desktop */
            process: string;
            /** @description why it ended or failed */
            reason?: string;
            sandbox: string;
            /** @description name of the session that it was started for */
            session?: string;
            /**
             * Format: int64
             * @description bytes recorded, as far as they are stored
             */
            size: number;
            /** Format: date-time */
            started: string;
            /** @enum {string} */
            state: "recording" | "finalizing" | "available" | "failed";
            title?: string;
        };
        RecordingCell: {
            available: boolean;
            codecs: string[] | null;
            modes: string[] | null;
            reason?: string;
        };
        RecordingListOutputBody: {
            /** @description the cursor of the next page; empty at the end */
            next?: string;
            /** @description newest first */
            recordings: components["schemas"]["Recording"][] | null;
        };
        Region: {
            /** Format: int64 */
            height: number;
            /** Format: int64 */
            width: number;
            /** Format: int64 */
            x: number;
            /** Format: int64 */
            y: number;
        };
        Resolution: {
            /** Format: int64 */
            height: number;
            /** Format: int64 */
            width: number;
        };
        Resources: {
            /**
             * Format: double
             * @description processors' worth of time, such as 0.5
             */
            cpus?: number;
            /**
             * Format: int64
             * @description bytes of the writable layer
             */
            disk?: number;
            /**
             * Format: int64
             * @description bytes, including those of the sandbox's kernel
             */
            memory?: number;
            /**
             * Format: int64
             * @description processes and threads alive at once
             */
            pids?: number;
        };
        RestoreInputBody: {
            /** @description kept with the new version */
            note?: string;
            /** Format: int64 */
            version: number;
        };
        ResumeRequest: {
            envelope: components["schemas"]["Envelope"];
            /** @description acquire the sandbox for this holder; without a holder, the sandbox is found or made when it is first used */
            holder?: components["schemas"]["HolderRef"];
            /** @description name of the session if it is a new one; its id if it is left out */
            name?: string;
            /** @description provider of the sandbox if it is rebuilt; that of the envelope if it is left out */
            provider?: string;
        };
        Rule: {
            /** @enum {string} */
            action: "allow" | "deny";
            /** @description checks of the bodies of allowed requests and their responses */
            filters?: components["schemas"]["Filter"][] | null;
            /** @description name, *.name, *, address or CIDR, each with an optional :port */
            hosts: string[] | null;
            /** @description credentials added to allowed requests after they have left the sandbox */
            inject?: components["schemas"]["Injection"][] | null;
            limits?: components["schemas"]["RuleLimits"];
            /** @description of HTTP requests */
            methods?: string[] | null;
            name?: string;
            /** @description of HTTP requests; * within a segment, ** for any number of segments */
            paths?: string[] | null;
            /** @enum {string} */
            tls?: "terminate" | "passthrough";
            /** @description allowed requests may upgrade to WebSockets */
            webSocket?: boolean;
        };
        RuleLimits: {
            /**
             * Format: int64
             * @description how many may come at the same time; a sixth of perMinute if left out
             */
            burst?: number;
            /**
             * Format: int64
             * @description open at the same time
             */
            connections?: number;
            /**
             * Format: int64
             * @description requests, or connections where requests cannot be seen
             */
            perMinute?: number;
            /**
             * Format: int64
             * @description sent per request, or per connection
             */
            requestBytes?: number;
            /**
             * Format: int64
             * @description received per request, or per connection
             */
            responseBytes?: number;
        };
        RunOnRequest: {
            command: components["schemas"]["ExecRequest"];
            /** @description a provider, or default for the provider that the session was created with */
            target: string;
        };
        Sandbox: {
            /** @description it ends with the process that made it */
            bound?: boolean;
            /** @description command of the image; only in the response that creates the sandbox */
            cmd?: string[] | null;
            /** Format: date-time */
            created: string;
            /** @description entrypoint of the image; only in the response that creates the sandbox */
            entrypoint?: string[] | null;
            /** @description how it ended; in the state exited, how its main command ended */
            exit?: components["schemas"]["Exit"];
            /**
             * Format: date-time
             * @description when its lifetime ends; left out while it is stopped or paused
             */
            expires?: string;
            id: string;
            image: string;
            /**
             * @description the wall between it and the machine that runs it; left out if it is not known
             * @enum {string}
             */
            isolation?: "none" | "kernel" | "hardware";
            labels?: {
                [key: string]: string;
            };
            /**
             * Format: int64
             * @description rest of its lifetime while it is stopped or paused, in milliseconds; not in listings
             */
            leftMs?: number;
            /** @description as requested; listings have the idle policy only */
            lifetime?: components["schemas"]["Lifetime"];
            /** @description limits in resources that the provider does not enforce, by name, and why */
            limits?: {
                [key: string]: components["schemas"]["Enforcement"];
            };
            /** @description the main command; not in listings */
            main?: components["schemas"]["MainCommand"];
            /** @description unique among your sandboxes that are not gone */
            name: string;
            /** @description the daemon that runs it, if several share a store */
            node?: string;
            /** @description id of the snapshot it was made from; not in listings */
            origin?: string;
            /**
             * @description where the state of a paused sandbox is; not in listings
             * @enum {string}
             */
            pause?: "memory" | "disk";
            /** @description ports published on the daemon's machine; not in listings */
            ports?: components["schemas"]["PublishedPort"][] | null;
            provider?: string;
            /** @description why it is in that state */
            reason?: string;
            resources?: components["schemas"]["Resources"];
            /** @enum {string} */
            state: "creating" | "running" | "exited" | "pausing" | "paused" | "resuming" | "stopped" | "lost" | "failed" | "gone";
            /** Format: date-time */
            updated?: string;
            /** @description it resumes when it is used; not in listings */
            wakes?: boolean;
        };
        SandboxUsage: {
            /**
             * Format: int64
             * @description processor time since it was made, in milliseconds
             */
            cpuMs: number;
            /**
             * Format: int64
             * @description bytes of the writable layer now
             */
            disk: number;
            /**
             * Format: int64
             * @description bytes now, its kernel included
             */
            memory: number;
            /**
             * Format: int64
             * @description processes and threads now
             */
            pids: number;
            /** Format: date-time */
            sampled: string;
        };
        Saved: {
            /** @description of a sandbox without workspaces */
            archive?: components["schemas"]["Archive"];
            workspaces?: components["schemas"]["WorkspaceRef"][] | null;
        };
        Screenshot: {
            /** Format: int64 */
            height: number;
            /** @description a PNG image, in Base64 */
            png: string;
            /** Format: int64 */
            width: number;
        };
        SearchMatch: {
            /**
             * Format: int64
             * @description first matching byte of the line, from 1
             */
            column?: number;
            /**
             * Format: int64
             * @description number of the line, if content was asked for
             */
            line?: number;
            /** @description relative to the directory of the request */
            path: string;
            /** @description the line, at most 1000 bytes of it around the match */
            text?: string;
        };
        SearchRequest: {
            /** @description a regular expression (RE2) for lines of text files */
            content?: string;
            /** @description names of files and directories to leave out; .git and node_modules if it is left out */
            exclude?: string[] | null;
            ignoreCase?: boolean;
            /** @description content is text, not a regular expression */
            literal?: boolean;
            /**
             * Format: int64
             * @description matches; 200 if it is left out
             */
            max?: number;
            /** @description a pattern of names such as *.go; with a slash it is of paths, such as src/**\/*.go */
            name?: string;
            /** @description absolute path of a directory */
            path: string;
        };
        SearchResult: {
            /**
             * Format: int64
             * @description files that were looked at
             */
            files: number;
            matches: components["schemas"]["SearchMatch"][] | null;
            /**
             * Format: int64
             * @description files that are larger than 4 MiB, and were not searched
             */
            skipped?: number;
            /** @description there may be more matches: the limit of matches, of files or of bytes was reached */
            truncated?: boolean;
        };
        SecretRef: {
            /** @description environment variable for the placeholder or the value; the name if left out */
            env?: string;
            /** @description hosts that the value is sent to; those of the secret if left out */
            hosts?: string[] | null;
            /** @description where the placeholder is replaced: header, header:NAME, basic, query, query:NAME, body */
            in?: string[] | null;
            /** @enum {string} */
            mode?: "gateway" | "env";
            /** @description of the stored secret */
            name: string;
        };
        SecretValue: {
            /** @description new labels; if left out, the labels do not change */
            labels?: {
                [key: string]: string;
            };
            /** @description the value, if it is UTF-8 */
            value?: string;
            /** @description the value, at most 64 KiB */
            valueBase64?: string;
        };
        SecretsOutputBody: {
            /** @description by name */
            secrets: components["schemas"]["StoredSecret"][] | null;
        };
        Session: {
            /** Format: date-time */
            created: string;
            group: string;
            id: string;
            labels?: {
                [key: string]: string;
            };
            lease?: components["schemas"]["LeaseInfo"];
            name: string;
            pauseOnExit?: boolean;
            provider?: string;
            receipt?: components["schemas"]["Receipt"];
            /** @enum {string} */
            record?: "manual" | "on-turn";
            spec: components["schemas"]["Spec"];
            /** Format: date-time */
            updated: string;
        };
        SessionChange: {
            /** @description labels to set; null removes one. The present sandbox keeps its labels */
            labels?: {
                [key: string]: string | null;
            };
            pauseOnExit?: boolean;
            /**
             * @description it applies to turns that begin, or send a heartbeat, from now on
             * @enum {string}
             */
            record?: "manual" | "on-turn";
        };
        SessionTarget: {
            /**
             * @description what moves with the session: its workspaces, or the files below /workspace
             * @enum {string}
             */
            carries?: "workspaces" | "/workspace";
            /** @description whether it serves the session now */
            current: boolean;
            fits: boolean;
            provider: string;
            /** @description why it does not fit, or its advantages */
            reasons: string[] | null;
        };
        SessionUsage: {
            /** @description value of the label, or the group or provider; empty: those without it */
            value: string;
            /**
             * Format: int64
             * @description in milliseconds
             */
            warmMs: number;
        };
        SessionUsageOutputBody: {
            /** @description by value */
            usage: components["schemas"]["SessionUsage"][] | null;
        };
        SessionsOutputBody: {
            /** @description by name */
            sessions: components["schemas"]["Session"][] | null;
        };
        SignedImage: {
            /** @description a pattern of names */
            image: string;
            /** @description files with public keys; a signature of one of them is enough */
            signedBy: string[] | null;
        };
        Snapshot: {
            /**
             * Format: int64
             * @description sandboxes that were made from it and are not gone
             */
            children: number;
            /** Format: date-time */
            created: string;
            /** @description it is encrypted in the blob store */
            encrypted?: boolean;
            /** @description the engine that wrote it; only the same engine restores memory */
            engine?: string;
            id: string;
            image: string;
            labels?: {
                [key: string]: string;
            };
            /** @description it holds processes and their memory too */
            memory: boolean;
            name: string;
            /** @description id of the sandbox it was taken of */
            parent: string;
            parentName: string;
            /** @description why it could not be saved */
            problem?: string;
            provider?: string;
            /** @description false while it is being made */
            ready: boolean;
            resources: components["schemas"]["Resources"];
            /** @description it is in the blob store; daemons that share the store can make sandboxes from it */
            saved: boolean;
            /**
             * Format: int64
             * @description bytes
             */
            size: number;
            /**
             * Format: int64
             * @description bytes that the blob store grew by
             */
            stored?: number;
        };
        SnapshotListOutputBody: {
            /** @description the cursor of the next page; empty at the end */
            next?: string;
            snapshots: components["schemas"]["Snapshot"][] | null;
        };
        SnapshotRequest: {
            labels?: {
                [key: string]: string;
            };
            /** @description processes and their memory too, not only files */
            memory?: boolean;
            /** @description unique among your snapshots; its id if it is left out */
            name?: string;
            /** @description respond when it is in the blob store; otherwise it is saved after the response */
            save?: boolean;
        };
        SnapshotSupport: {
            kind: string;
            tarFallback: boolean;
        };
        Spec: {
            /** @description added to the image's environment of every command; values are not stored in the database */
            env?: {
                [key: string]: string;
            };
            hostname?: string;
            /** @description assigned by the server */
            readonly id?: string;
            /**
             * @description source of the root file system; the machine's own programs if it is left out
             * @example debian:12
             */
            image?: string;
            /**
             * @description the weakest isolation that it may have: none, a kernel of its own, or a virtual machine; that of the provider if it is left out
             * @enum {string}
             */
            isolation?: "none" | "kernel" | "hardware";
            labels?: {
                [key: string]: string;
            };
            lifetime?: components["schemas"]["Lifetime"];
            /** @description the main command, as of a container; none if left out */
            main?: components["schemas"]["MainCommand"];
            /** @description files and directories of the machine; only for its owner */
            mounts?: components["schemas"]["Mount"][] | null;
            /** @description unique among your sandboxes; the id if it is left out */
            name?: string;
            /** @description hosts that the sandbox may reach; none if it is left out */
            network?: components["schemas"]["Network"];
            /** @description ports to publish on the daemon's machine; only for its owner */
            ports?: components["schemas"]["PublishedPort"][] | null;
            /** @description name of the provider; the daemon's default if it is left out */
            provider?: string;
            /** @description replace values of secrets of mode env by asterisks in the output of commands */
            redact?: boolean;
            /** @description fail if the provider does not enforce a limit in resources */
            requireLimits?: boolean;
            resources?: components["schemas"]["Resources"];
            /** @description stored secrets that the sandbox uses */
            secrets?: components["schemas"]["SecretRef"][] | null;
            /** @description name or id of a snapshot to start from, instead of an image */
            snapshot?: string;
            /** @description user that runs commands: NAME, UID, NAME:GROUP or UID:GID */
            user?: string;
            /** @description absolute directory where commands start */
            workdir?: string;
            /** @description durable directories, each at its own path */
            workspaces?: components["schemas"]["WorkspaceMount"][] | null;
        };
        StopInputBody: {
            /**
             * Format: int64
             * @description how long commands may take to end after SIGTERM, in milliseconds
             */
            graceMs?: number;
        };
        StoredProfile: {
            /** Format: date-time */
            created: string;
            name: string;
            profile: components["schemas"]["Profile"];
            /** Format: date-time */
            updated: string;
            /**
             * Format: int64
             * @description number of sandboxes that use it; only in a list
             */
            uses?: number;
            /**
             * Format: int64
             * @description raised by every change
             */
            version: number;
        };
        StoredSecret: {
            /** @description sandboxes may get the value itself */
            allowEnv?: boolean;
            /** Format: date-time */
            created: string;
            description?: string;
            /** @description hosts that it may be sent to */
            hosts?: string[] | null;
            labels?: {
                [key: string]: string;
            };
            name: string;
            /** @description where the daemon reads the value from: env:NAME or file:/PATH */
            source?: string;
            /** Format: date-time */
            updated: string;
            /**
             * Format: int64
             * @description number of sandboxes that use it; only in a list
             */
            uses?: number;
            /**
             * Format: int64
             * @description raised by every new value
             */
            version: number;
        };
        Stream: {
            /**
             * Format: date-time
             * @description until then its token opens sockets
             */
            expiresAt: string;
            id: string;
            kind: string;
            /**
             * Format: int64
             * @description of the session; 0 if the stream was opened for a sandbox
             */
            leaseEpoch: number;
            mode: string;
            /** Format: int32 */
            port?: number;
            /** @description of a terminal */
            process?: string;
            sandbox: string;
            /**
             * Format: int64
             * @description number of open sockets
             */
            viewers: number;
        };
        StreamAccess: {
            /**
             * @description what can show it
             * @enum {string}
             */
            client: "xterm" | "novnc" | "bytes";
            /** @description one-time code that redeemStream exchanges for the token; only with link */
            code?: string;
            /**
             * Format: date-time
             * @description until then the code can be exchanged
             */
            codeExpiresAt?: string;
            /**
             * Format: date-time
             * @description until then its token opens sockets
             */
            expiresAt: string;
            id: string;
            kind: string;
            /**
             * Format: int64
             * @description of the session; 0 if the stream was opened for a sandbox
             */
            leaseEpoch: number;
            mode: string;
            /** Format: int32 */
            port?: number;
            /** @description of a terminal */
            process?: string;
            sandbox: string;
            /** @description for the first message or the subprotocol; never for a URL */
            token: string;
            /** @enum {string} */
            transport: "terminal-ws" | "vnc-ws" | "tcp-ws";
            /** @description path of the WebSocket, below the address of the API */
            url: string;
            /**
             * Format: int64
             * @description number of open sockets
             */
            viewers: number;
        };
        StreamRedemption: {
            /** @description one-time code of the link */
            code?: string;
            /** @description token of the stream that is still valid, also of an earlier sandbox of its session */
            token?: string;
        };
        StreamRenewalBody: {
            /**
             * Format: int64
             * @description seconds during which the token opens sockets; 120 if it is left out
             */
            ttl?: number;
        };
        StreamsOutputBody: {
            /** @description by id, without tokens */
            streams: components["schemas"]["Stream"][] | null;
        };
        SwapRequest: {
            /** @description a provider, or default for the provider that the session was created with */
            target: string;
        };
        Swapped: {
            reason?: string;
            receipt?: components["schemas"]["Receipt"];
            swapped: boolean;
        };
        TagInputBody: {
            /** @description the name to give it, NAME or NAME:TAG */
            as: string;
        };
        TargetsOutputBody: {
            /** @description best first */
            targets: components["schemas"]["SessionTarget"][] | null;
        };
        Template: {
            /** @description digest of the image it was built on */
            base: string;
            /** @description id of the build, for clients of E2B */
            build?: string;
            /**
             * Format: double
             * @description default CPUs of sandboxes made from it
             */
            cpus?: number;
            /** Format: date-time */
            created: string;
            /** @description digest of the image */
            image: string;
            /**
             * Format: int64
             * @description default memory of sandboxes made from it, in bytes
             */
            memory?: number;
            name: string;
            /** @description other tenants may use it, as TENANT/NAME */
            public?: boolean;
            /**
             * Format: int64
             * @description bytes of its files
             */
            size: number;
            /** @description snapshot that its sandboxes are made from, with their memory */
            snapshot?: string;
            /** @description script that runs in every sandbox made from it */
            start?: string;
            /** Format: int64 */
            steps: number;
            tag: string;
        };
        TemplatesOutputBody: {
            /** @description by name and tag */
            templates: components["schemas"]["Template"][] | null;
        };
        Tenant: {
            /** Format: date-time */
            created: string;
            /**
             * Format: date-time
             * @description since when its keys are refused
             */
            disabled?: string;
            id: string;
            limits: components["schemas"]["Limits"];
            usage: components["schemas"]["TenantUsage"];
        };
        TenantChange: {
            /** @description refuse its keys from now on, or allow them again */
            disabled?: boolean;
            limits?: components["schemas"]["LimitsChange"];
        };
        TenantUsage: {
            /** Format: int64 */
            boxes: number;
            /** Format: double */
            cpus: number;
            /**
             * Format: int64
             * @description bytes
             */
            disk: number;
            /**
             * Format: int64
             * @description bytes
             */
            memory: number;
            /**
             * Format: int64
             * @description of all snapshots
             */
            snapshotBytes: number;
            /**
             * Format: int64
             * @description those with a name
             */
            snapshots: number;
            /**
             * Format: double
             * @description hours of this calendar month (UTC) that sandboxes of sessions existed
             */
            warmHours?: number;
        };
        TenantsOutputBody: {
            /** @description by name */
            tenants: components["schemas"]["Tenant"][] | null;
        };
        TerminalCell: {
            /** Format: date-time */
            expiresAt?: string;
            ptyCapable: boolean;
            reason?: string;
            shell: string;
            token?: string;
            transport?: string;
            url?: string;
        };
        TerminalSupport: {
            available: boolean;
            pty: boolean;
            transport?: string;
        };
        Unit: {
            of: string;
            unit: string;
        };
        UpstreamProxy: {
            /** @description HOST:PORT of a SOCKS5 proxy */
            address: string;
            /** @description write-only: it is stored encrypted */
            password?: string;
            /** @description the password, encrypted by the daemon */
            sealed?: string;
            tls?: components["schemas"]["ProxyTLS"];
            username?: string;
        };
        VersionsOutputBody: {
            /** @description oldest first */
            versions: components["schemas"]["WorkspaceVersion"][] | null;
        };
        Visibility: {
            /** @description TENANT/NAME, by which other tenants use it while it is public */
            name: string;
            /** @description other tenants may use it */
            public: boolean;
            /** @description all of its tags */
            tags: string[] | null;
        };
        VisibilityInputBody: {
            /** @description other tenants may use it; only admin keys may set it to true */
            public: boolean;
        };
        WindowSize: {
            /** Format: int32 */
            cols: number;
            /** Format: int32 */
            rows: number;
        };
        Workspace: {
            /** @description the sandboxes that it is attached to */
            attached: components["schemas"]["Attachment"][] | null;
            /** @description S3 bucket that holds the workspace, if any */
            bucket?: string;
            /** Format: date-time */
            created: string;
            encrypted?: boolean;
            /** @description assigned by the server; never reused */
            id: string;
            /** @description the newest version; not in lists */
            latest?: components["schemas"]["WorkspaceVersion"];
            /**
             * Format: int64
             * @description bytes that one version may hold; no limit if it is left out
             */
            maxBytes?: number;
            name: string;
            /** @description why the last state could not be persisted; it is kept on the machine */
            problem?: string;
        };
        WorkspaceChange: {
            dir?: boolean;
            /** @enum {string} */
            kind: "added" | "removed" | "modified" | "touched";
            /** @description below the workspace; bytes that are not UTF-8 are replaced */
            path: string;
            /**
             * Format: int64
             * @description size in bytes after the change
             */
            size: number;
        };
        WorkspaceMount: {
            /** @description make the workspace if there is none of that name */
            create?: boolean;
            /**
             * @description exclusive: no other sandbox may have it attached; shared or read: others may, in the same mode
             * @enum {string}
             */
            mode?: "exclusive" | "shared" | "read";
            name: string;
            /** @description where the sandbox sees it; /workspace if left out */
            path?: string;
            /** @description directories below it that cannot be written to */
            readOnly?: string[] | null;
            /** @description the only directories below it that can be written to */
            writable?: string[] | null;
        };
        WorkspacePruned: {
            /**
             * Format: int64
             * @description bytes by which the store shrank
             */
            freed: number;
            versions: number[] | null;
        };
        WorkspaceRef: {
            name: string;
            version: string;
        };
        WorkspaceReport: {
            /**
             * Format: int64
             * @description of everything that is stored
             */
            bytes: number;
            /** Format: int64 */
            chunks: number;
            /** Format: int64 */
            versions: number;
        };
        WorkspaceVersion: {
            /**
             * Format: int64
             * @description bytes that the store grew by
             */
            added: number;
            /**
             * Format: int64
             * @description of file contents, without holes
             */
            bytes: number;
            /** Format: date-time */
            created: string;
            /** Format: int64 */
            dirs: number;
            /** Format: int64 */
            files: number;
            note?: string;
            /** Format: int64 */
            number: number;
            /**
             * Format: int64
             * @description sockets and device nodes, which are not kept
             */
            skipped?: number;
        };
        WorkspacesOutputBody: {
            /** @description by name */
            workspaces: components["schemas"]["Workspace"][] | null;
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}

export type Acquired = components['schemas']['Acquired']
export type Archive = components['schemas']['Archive']
export type ArchiveFile = components['schemas']['ArchiveFile']
export type Attachment = components['schemas']['Attachment']
export type AuditPrune = components['schemas']['AuditPrune']
export type AuditPruned = components['schemas']['AuditPruned']
export type AuditReport = components['schemas']['AuditReport']
export type Caller = components['schemas']['Caller']
export type Candidate = components['schemas']['Candidate']
export type CapabilityDocument = components['schemas']['CapabilityDocument']
export type Change = components['schemas']['Change']
export type Choice = components['schemas']['Choice']
export type CodeContext = components['schemas']['CodeContext']
export type CodeError = components['schemas']['CodeError']
export type CodeEvent = components['schemas']['CodeEvent']
export type CodeRequest = components['schemas']['CodeRequest']
export type CodeResult = components['schemas']['CodeResult']
export type ComputerAction = components['schemas']['ComputerAction']
export type ComputerRequest = components['schemas']['ComputerRequest']
export type ComputerResult = components['schemas']['ComputerResult']
export type ComputerUseCell = components['schemas']['ComputerUseCell']
export type ConsoleLink = components['schemas']['ConsoleLink']
export type ConsoleSettings = components['schemas']['ConsoleSettings']
export type ContextsOutputBody = components['schemas']['ContextsOutputBody']
export type CreateRequest = components['schemas']['CreateRequest']
export type Credential = components['schemas']['Credential']
export type Descriptor = components['schemas']['Descriptor']
export type DesktopCell = components['schemas']['DesktopCell']
export type DesktopInputBody = components['schemas']['DesktopInputBody']
export type DesktopState = components['schemas']['DesktopState']
export type DesktopSupport = components['schemas']['DesktopSupport']
export type Diagnosis = components['schemas']['Diagnosis']
export type DiffOutputBody = components['schemas']['DiffOutputBody']
export type DriverSupport = components['schemas']['DriverSupport']
export type E2BPlace = components['schemas']['E2BPlace']
export type E2BSettings = components['schemas']['E2BSettings']
export type EgressSettingsOutputBody = components['schemas']['EgressSettingsOutputBody']
export type Enforcement = components['schemas']['Enforcement']
export type Envelope = components['schemas']['Envelope']
export type Epoch = components['schemas']['Epoch']
export type Event = components['schemas']['Event']
export type EventsOutputBody = components['schemas']['EventsOutputBody']
export type ExecRequest = components['schemas']['ExecRequest']
export type ExecResult = components['schemas']['ExecResult']
export type Exit = components['schemas']['Exit']
export type ExplainStep = components['schemas']['ExplainStep']
export type Explanation = components['schemas']['Explanation']
export type Fault = components['schemas']['Fault']
export type FileInfo = components['schemas']['FileInfo']
export type FileSystemCell = components['schemas']['FileSystemCell']
export type FileSystemSupport = components['schemas']['FileSystemSupport']
export type Filter = components['schemas']['Filter']
export type Finding = components['schemas']['Finding']
export type ForkOutputBody = components['schemas']['ForkOutputBody']
export type ForkRequest = components['schemas']['ForkRequest']
export type GitBlame = components['schemas']['GitBlame']
export type GitBlameCommit = components['schemas']['GitBlameCommit']
export type GitBlameLine = components['schemas']['GitBlameLine']
export type GitBlob = components['schemas']['GitBlob']
export type GitCell = components['schemas']['GitCell']
export type GitCommit = components['schemas']['GitCommit']
export type GitDiff = components['schemas']['GitDiff']
export type GitFileDiff = components['schemas']['GitFileDiff']
export type GitFileStatus = components['schemas']['GitFileStatus']
export type GitHunk = components['schemas']['GitHunk']
export type GitLine = components['schemas']['GitLine']
export type GitLog = components['schemas']['GitLog']
export type GitPerson = components['schemas']['GitPerson']
export type GitShow = components['schemas']['GitShow']
export type GitStatus = components['schemas']['GitStatus']
export type Holder = components['schemas']['Holder']
export type HolderRef = components['schemas']['HolderRef']
export type ImageUse = components['schemas']['ImageUse']
export type ImageUsesOutputBody = components['schemas']['ImageUsesOutputBody']
export type InjectPart = components['schemas']['InjectPart']
export type Injection = components['schemas']['Injection']
export type Key = components['schemas']['Key']
export type KeysOutputBody = components['schemas']['KeysOutputBody']
export type KillInputBody = components['schemas']['KillInputBody']
export type LeaseInfo = components['schemas']['LeaseInfo']
export type Lifetime = components['schemas']['Lifetime']
export type LifetimeChange = components['schemas']['LifetimeChange']
export type LifetimeSupport = components['schemas']['LifetimeSupport']
export type Limits = components['schemas']['Limits']
export type LimitsChange = components['schemas']['LimitsChange']
export type ListOutputBody = components['schemas']['ListOutputBody']
export type Load = components['schemas']['Load']
export type Machine = components['schemas']['Machine']
export type MachineApproval = components['schemas']['MachineApproval']
export type MachineToken = components['schemas']['MachineToken']
export type MachinesOutputBody = components['schemas']['MachinesOutputBody']
export type MainCommand = components['schemas']['MainCommand']
export type MkdirInputBody = components['schemas']['MkdirInputBody']
export type Mount = components['schemas']['Mount']
export type MoveInputBody = components['schemas']['MoveInputBody']
export type Needs = components['schemas']['Needs']
export type Network = components['schemas']['Network']
export type NewCodeContext = components['schemas']['NewCodeContext']
export type NewKey = components['schemas']['NewKey']
export type NewMachineToken = components['schemas']['NewMachineToken']
export type NewPortToken = components['schemas']['NewPortToken']
export type NewRecording = components['schemas']['NewRecording']
export type NewSecret = components['schemas']['NewSecret']
export type NewSession = components['schemas']['NewSession']
export type NewStream = components['schemas']['NewStream']
export type NewTenant = components['schemas']['NewTenant']
export type NewWorkspace = components['schemas']['NewWorkspace']
export type Node = components['schemas']['Node']
export type NodeChange = components['schemas']['NodeChange']
export type NodeDrain = components['schemas']['NodeDrain']
export type NodeDrained = components['schemas']['NodeDrained']
export type NodeMoved = components['schemas']['NodeMoved']
export type NodeSandbox = components['schemas']['NodeSandbox']
export type NodesOutputBody = components['schemas']['NodesOutputBody']
export type NoteInputBody = components['schemas']['NoteInputBody']
export type OSList = components['schemas']['OSList']
export type Opened = components['schemas']['Opened']
export type Output = components['schemas']['Output']
export type PatchRequest = components['schemas']['PatchRequest']
export type PatchResult = components['schemas']['PatchResult']
export type PatchedFile = components['schemas']['PatchedFile']
export type PauseInputBody = components['schemas']['PauseInputBody']
export type Point = components['schemas']['Point']
export type Policies = components['schemas']['Policies']
export type Policy = components['schemas']['Policy']
export type PolicyAnswer = components['schemas']['PolicyAnswer']
export type PolicyCeiling = components['schemas']['PolicyCeiling']
export type PolicyFinding = components['schemas']['PolicyFinding']
export type PortSupport = components['schemas']['PortSupport']
export type PortToken = components['schemas']['PortToken']
export type Preview = components['schemas']['Preview']
export type PreviewRequest = components['schemas']['PreviewRequest']
export type PreviewsOutputBody = components['schemas']['PreviewsOutputBody']
export type Problem = components['schemas']['Problem']
export type ProcessInfo = components['schemas']['ProcessInfo']
export type ProcessesOutputBody = components['schemas']['ProcessesOutputBody']
export type Profile = components['schemas']['Profile']
export type ProfileTest = components['schemas']['ProfileTest']
export type ProfilesOutputBody = components['schemas']['ProfilesOutputBody']
export type Provider = components['schemas']['Provider']
export type ProvidersOutputBody = components['schemas']['ProvidersOutputBody']
export type ProxyTLS = components['schemas']['ProxyTLS']
export type PruneBuildsInputBody = components['schemas']['PruneBuildsInputBody']
export type PruneBuildsOutputBody = components['schemas']['PruneBuildsOutputBody']
export type PruneInputBody = components['schemas']['PruneInputBody']
export type PruneWorkspaceInputBody = components['schemas']['PruneWorkspaceInputBody']
export type Publication = components['schemas']['Publication']
export type PublishedOutputBody = components['schemas']['PublishedOutputBody']
export type PublishedPort = components['schemas']['PublishedPort']
export type ReadyOutputBody = components['schemas']['ReadyOutputBody']
export type Receipt = components['schemas']['Receipt']
export type ReceiptFrom = components['schemas']['ReceiptFrom']
export type Recording = components['schemas']['Recording']
export type RecordingCell = components['schemas']['RecordingCell']
export type RecordingListOutputBody = components['schemas']['RecordingListOutputBody']
export type Region = components['schemas']['Region']
export type Resolution = components['schemas']['Resolution']
export type Resources = components['schemas']['Resources']
export type RestoreInputBody = components['schemas']['RestoreInputBody']
export type ResumeRequest = components['schemas']['ResumeRequest']
export type Rule = components['schemas']['Rule']
export type RuleLimits = components['schemas']['RuleLimits']
export type RunOnRequest = components['schemas']['RunOnRequest']
export type Sandbox = components['schemas']['Sandbox']
export type SandboxUsage = components['schemas']['SandboxUsage']
export type Saved = components['schemas']['Saved']
export type Screenshot = components['schemas']['Screenshot']
export type SearchMatch = components['schemas']['SearchMatch']
export type SearchRequest = components['schemas']['SearchRequest']
export type SearchResult = components['schemas']['SearchResult']
export type SecretRef = components['schemas']['SecretRef']
export type SecretValue = components['schemas']['SecretValue']
export type SecretsOutputBody = components['schemas']['SecretsOutputBody']
export type Session = components['schemas']['Session']
export type SessionChange = components['schemas']['SessionChange']
export type SessionTarget = components['schemas']['SessionTarget']
export type SessionUsage = components['schemas']['SessionUsage']
export type SessionUsageOutputBody = components['schemas']['SessionUsageOutputBody']
export type SessionsOutputBody = components['schemas']['SessionsOutputBody']
export type SignedImage = components['schemas']['SignedImage']
export type Snapshot = components['schemas']['Snapshot']
export type SnapshotListOutputBody = components['schemas']['SnapshotListOutputBody']
export type SnapshotRequest = components['schemas']['SnapshotRequest']
export type SnapshotSupport = components['schemas']['SnapshotSupport']
export type Spec = components['schemas']['Spec']
export type StopInputBody = components['schemas']['StopInputBody']
export type StoredProfile = components['schemas']['StoredProfile']
export type StoredSecret = components['schemas']['StoredSecret']
export type Stream = components['schemas']['Stream']
export type StreamAccess = components['schemas']['StreamAccess']
export type StreamRedemption = components['schemas']['StreamRedemption']
export type StreamRenewalBody = components['schemas']['StreamRenewalBody']
export type StreamsOutputBody = components['schemas']['StreamsOutputBody']
export type SwapRequest = components['schemas']['SwapRequest']
export type Swapped = components['schemas']['Swapped']
export type TagInputBody = components['schemas']['TagInputBody']
export type TargetsOutputBody = components['schemas']['TargetsOutputBody']
export type Template = components['schemas']['Template']
export type TemplatesOutputBody = components['schemas']['TemplatesOutputBody']
export type Tenant = components['schemas']['Tenant']
export type TenantChange = components['schemas']['TenantChange']
export type TenantUsage = components['schemas']['TenantUsage']
export type TenantsOutputBody = components['schemas']['TenantsOutputBody']
export type TerminalCell = components['schemas']['TerminalCell']
export type TerminalSupport = components['schemas']['TerminalSupport']
export type Unit = components['schemas']['Unit']
export type UpstreamProxy = components['schemas']['UpstreamProxy']
export type VersionsOutputBody = components['schemas']['VersionsOutputBody']
export type Visibility = components['schemas']['Visibility']
export type VisibilityInputBody = components['schemas']['VisibilityInputBody']
export type WindowSize = components['schemas']['WindowSize']
export type Workspace = components['schemas']['Workspace']
export type WorkspaceChange = components['schemas']['WorkspaceChange']
export type WorkspaceMount = components['schemas']['WorkspaceMount']
export type WorkspacePruned = components['schemas']['WorkspacePruned']
export type WorkspaceRef = components['schemas']['WorkspaceRef']
export type WorkspaceReport = components['schemas']['WorkspaceReport']
export type WorkspaceVersion = components['schemas']['WorkspaceVersion']
export type WorkspacesOutputBody = components['schemas']['WorkspacesOutputBody']
