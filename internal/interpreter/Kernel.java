import java.io.ByteArrayOutputStream;
import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import jdk.jshell.Diag;
import jdk.jshell.EvalException;
import jdk.jshell.JShell;
import jdk.jshell.JShellException;
import jdk.jshell.Snippet;
import jdk.jshell.SnippetEvent;
import jdk.jshell.SourceCodeAnalysis;

/**
 * The kernel for Java. A request is a line of two hexadecimal fields: the code,
 * and the environment, which a running Java cannot change.
 */
public class Kernel {
    static OutputStream messages;
    static JShell shell;

    public static void main(String[] args) throws Exception {
        byte[] mark = ("\0" + System.getenv("ATOLL_KERNEL_MARK") + "\0").getBytes(StandardCharsets.UTF_8);
        BufferedReader requests = new BufferedReader(new InputStreamReader(new FileInputStream("/proc/self/fd/3"), StandardCharsets.US_ASCII));
        messages = new FileOutputStream("/proc/self/fd/4");
        shell = JShell.builder().executionEngine("local").out(System.out).err(System.err).build();
        for (String name : List.of("java.io", "java.math", "java.net", "java.nio.file", "java.util", "java.util.concurrent", "java.util.function", "java.util.regex", "java.util.stream")) {
            shell.eval("import " + name + ".*;");
        }
        sun.misc.Signal.handle(new sun.misc.Signal("INT"), signal -> shell.stop());
        for (String line; (line = requests.readLine()) != null;) {
            try {
                execute(unhex(line.split(" ")[0]));
            } catch (Throwable e) {
                error(e.getClass().getName(), String.valueOf(e.getMessage()), "");
            }
            say("{\"type\": \"done\"}");
            System.out.write(mark, 0, mark.length);
            System.out.flush();
            System.err.write(mark, 0, mark.length);
            System.err.flush();
        }
        System.exit(0);
    }

    static void execute(String code) throws Exception {
        String value = null;
        for (String rest = code; !rest.isBlank();) {
            SourceCodeAnalysis.CompletionInfo info = shell.sourceCodeAnalysis().analyzeCompletion(rest);
            String source = info.source();
            if (source == null || !info.completeness().isComplete()) {
                source = rest;
                rest = "";
            } else {
                rest = info.remaining();
            }
            for (SnippetEvent event : shell.eval(source)) {
                if (event.causeSnippet() != null) {
                    continue; // it only follows from another
                }
                if (event.status() == Snippet.Status.REJECTED) {
                    rejected(event.snippet());
                    return;
                }
                if (event.exception() != null) {
                    thrown(event.exception());
                    return;
                }
                boolean expression = event.snippet().kind() == Snippet.Kind.EXPRESSION || event.snippet().subKind() == Snippet.SubKind.TEMP_VAR_EXPRESSION_SUBKIND;
                value = expression ? event.value() : null;
            }
        }
        if (value != null && !value.isEmpty()) {
            if (value.length() > 1 && value.startsWith("\"") && value.endsWith("\"")) {
                value = value.substring(1, value.length() - 1);
            }
            say("{\"type\": \"result\", \"is_main_result\": true, \"text\": " + quoted(value) + "}");
        }
    }

    static void rejected(Snippet snippet) throws Exception {
        List<String> said = new ArrayList<>();
        shell.diagnostics(snippet).filter(Diag::isError).forEach(d -> said.add(d.getMessage(Locale.ENGLISH)));
        error("CompilationError", String.join("\n", said), snippet.source());
    }

    static void thrown(JShellException e) throws Exception {
        String name = e instanceof EvalException ? ((EvalException) e).getExceptionClassName() : e.getClass().getName();
        StringBuilder trace = new StringBuilder(name + ": " + e.getMessage());
        for (StackTraceElement at : e.getStackTrace()) {
            trace.append("\n\tat ").append(at);
        }
        error(name.substring(name.lastIndexOf('.') + 1), String.valueOf(e.getMessage()), trace.toString());
    }

    static void error(String name, String value, String trace) throws Exception {
        say("{\"type\": \"error\", \"name\": " + quoted(name) + ", \"value\": " + quoted(value) + ", \"traceback\": " + quoted(trace) + "}");
    }

    static void say(String line) throws Exception {
        messages.write((line + "\n").getBytes(StandardCharsets.UTF_8));
    }

    static String quoted(String s) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : s.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }

    static String unhex(String hex) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        for (int i = 0; i + 1 < hex.length(); i += 2) {
            out.write(Integer.parseInt(hex.substring(i, i + 2), 16));
        }
        return out.toString(StandardCharsets.UTF_8);
    }
}
