import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.zip.ZipEntry;
import java.util.zip.ZipFile;
import java.util.zip.ZipOutputStream;
import org.objectweb.asm.ClassReader;
import org.objectweb.asm.ClassVisitor;
import org.objectweb.asm.ClassWriter;
import org.objectweb.asm.Handle;
import org.objectweb.asm.MethodVisitor;
import org.objectweb.asm.Opcodes;
import org.objectweb.asm.Type;

/**
 * Joins the classes of several jars in one that dx can turn into dex: java -cp asm.jar PlainClasses.java OUT.jar IN.jar...
 *
 * Lambdas that were compiled to invokedynamic become classes: dx would make invoke-custom of them, and Android has no
 * LambdaMetafactory to serve it. Classes for newer JVMs and descriptions of modules are left out.
 */
public final class PlainClasses {
    private static final String FACTORY = "java/lang/invoke/LambdaMetafactory";
    private static final int JAVA_8 = 52;

    private final Map<String, byte[]> classes = new TreeMap<>();
    private int lambdas;

    public static void main(String[] args) throws IOException {
        PlainClasses all = new PlainClasses();
        for (int i = 1; i < args.length; i++) all.read(Path.of(args[i]));
        try (ZipOutputStream out = new ZipOutputStream(Files.newOutputStream(Path.of(args[0])))) {
            for (Map.Entry<String, byte[]> each : all.classes.entrySet()) {
                out.putNextEntry(new ZipEntry(each.getKey()));
                out.write(each.getValue());
            }
        }
        System.out.println(all.classes.size() + " classes, " + all.lambdas + " of them made for lambdas");
    }

    private void read(Path jar) throws IOException {
        try (ZipFile zip = new ZipFile(jar.toFile())) {
            for (ZipEntry entry : Collections.list(zip.entries())) {
                String name = entry.getName();
                if (!name.endsWith(".class") || name.startsWith("META-INF/") || name.endsWith("module-info.class")) continue;
                try (InputStream in = zip.getInputStream(entry)) {
                    rewrite(jar, name, in.readAllBytes());
                }
            }
        }
    }

    private void rewrite(Path jar, String name, byte[] bytes) {
        ClassReader reader = new ClassReader(bytes);
        Set<String> opened = new HashSet<>();
        reader.accept(new Implementations(reader.getClassName(), opened), ClassReader.SKIP_DEBUG | ClassReader.SKIP_FRAMES);
        ClassWriter writer = new ClassWriter(ClassWriter.COMPUTE_MAXS);
        reader.accept(new Rewriter(writer, jar, opened), 0);
        if (classes.put(name, writer.toByteArray()) != null) {
            throw new IllegalStateException(name + " is in two jars, the second of which is " + jar);
        }
    }

    /** Finds the methods of a class that its lambdas call. */
    private static final class Implementations extends ClassVisitor {
        private final String owner;
        private final Set<String> found;

        Implementations(String owner, Set<String> found) {
            super(Opcodes.ASM9);
            this.owner = owner;
            this.found = found;
        }

        @Override
        public MethodVisitor visitMethod(int access, String name, String desc, String signature, String[] exceptions) {
            return new MethodVisitor(Opcodes.ASM9) {
                @Override
                public void visitInvokeDynamicInsn(String name, String desc, Handle by, Object... args) {
                    if (by.getOwner().equals(FACTORY) && args[1] instanceof Handle) {
                        Handle to = (Handle) args[1];
                        if (to.getOwner().equals(owner)) found.add(to.getName() + to.getDesc());
                    }
                }
            };
        }
    }

    private final class Rewriter extends ClassVisitor {
        private final Path jar;
        private final Set<String> opened;
        private String owner;
        private boolean isInterface;
        private int count;

        Rewriter(ClassVisitor next, Path jar, Set<String> opened) {
            super(Opcodes.ASM9, next);
            this.jar = jar;
            this.opened = opened;
        }

        @Override
        public void visit(int version, int access, String name, String signature, String parent, String[] interfaces) {
            if (version > JAVA_8) {
                throw new IllegalStateException(name + " in " + jar + " is bytecode of Java " + (version - 44) + "; dx reads Java 8's.");
            }
            owner = name;
            isInterface = (access & Opcodes.ACC_INTERFACE) != 0;
            super.visit(version, access, name, signature, parent, interfaces);
        }

        @Override
        public MethodVisitor visitMethod(int access, String name, String desc, String signature, String[] exceptions) {
            boolean called = opened.contains(name + desc) && (access & Opcodes.ACC_PRIVATE) != 0;
            if (called && (access & Opcodes.ACC_STATIC) != 0) {
                access = access & ~Opcodes.ACC_PRIVATE | (isInterface ? Opcodes.ACC_PUBLIC : 0);
            } else if (called && !name.equals("<init>")) {
                throw new IllegalStateException("A lambda of " + owner + " calls its private method " + name + "; make it static.");
            }
            String method = name;
            return new MethodVisitor(Opcodes.ASM9, super.visitMethod(access, name, desc, signature, exceptions)) {
                @Override
                public void visitInvokeDynamicInsn(String sam, String desc, Handle by, Object... args) {
                    if (!by.getOwner().equals(FACTORY)) {
                        throw new IllegalStateException(owner + "." + method + " needs " + by.getOwner() + ", which Android does not have.");
                    }
                    String made = owner + "$$Lambda" + count++;
                    classes.put(made + ".class", Lambda.write(made, sam, desc, args));
                    lambdas++;
                    super.visitMethodInsn(Opcodes.INVOKESTATIC, made, Lambda.MAKE, desc, false);
                }
            };
        }
    }

    /** The class of one lambda: captured values in fields, one method that calls the implementation. */
    private static final class Lambda {
        static final String MAKE = "make";
        private static final String OBJECT = "java/lang/Object";
        private static final int SERIALIZABLE = 1;
        private static final int MARKERS = 2;
        private static final int BRIDGES = 4;

        static byte[] write(String name, String sam, String desc, Object[] args) {
            Type[] captured = Type.getArgumentTypes(desc);
            Type erased = (Type) args[0];
            Handle to = (Handle) args[1];
            Type exact = (Type) args[2];
            List<String> interfaces = new ArrayList<>(List.of(Type.getReturnType(desc).getInternalName()));
            Set<String> methods = new LinkedHashSet<>(List.of(erased.getDescriptor()));
            if (args.length > 3) {
                int flags = (Integer) args[3];
                int at = 4;
                if ((flags & SERIALIZABLE) != 0) interfaces.add("java/io/Serializable");
                if ((flags & MARKERS) != 0) {
                    for (int n = (Integer) args[at++]; n > 0; n--) interfaces.add(((Type) args[at++]).getInternalName());
                }
                if ((flags & BRIDGES) != 0) {
                    for (int n = (Integer) args[at++]; n > 0; n--) methods.add(((Type) args[at++]).getDescriptor());
                }
            }
            ClassWriter out = new ClassWriter(ClassWriter.COMPUTE_MAXS);
            int access = Opcodes.ACC_FINAL | Opcodes.ACC_SUPER | Opcodes.ACC_SYNTHETIC;
            out.visit(JAVA_8, access, name, null, OBJECT, interfaces.stream().distinct().toArray(String[]::new));
            for (int i = 0; i < captured.length; i++) {
                out.visitField(Opcodes.ACC_PRIVATE | Opcodes.ACC_FINAL, "v" + i, captured[i].getDescriptor(), null, null);
            }
            construct(out, name, captured);
            make(out, name, desc, captured);
            for (String method : methods) call(out, name, sam, method, captured, to, exact);
            return out.toByteArray();
        }

        private static void construct(ClassWriter out, String name, Type[] captured) {
            MethodVisitor code = out.visitMethod(0, "<init>", Type.getMethodDescriptor(Type.VOID_TYPE, captured), null, null);
            code.visitCode();
            code.visitVarInsn(Opcodes.ALOAD, 0);
            code.visitMethodInsn(Opcodes.INVOKESPECIAL, OBJECT, "<init>", "()V", false);
            for (int i = 0, slot = 1; i < captured.length; slot += captured[i++].getSize()) {
                code.visitVarInsn(Opcodes.ALOAD, 0);
                code.visitVarInsn(captured[i].getOpcode(Opcodes.ILOAD), slot);
                code.visitFieldInsn(Opcodes.PUTFIELD, name, "v" + i, captured[i].getDescriptor());
            }
            end(code, Type.VOID_TYPE);
        }

        private static void make(ClassWriter out, String name, String desc, Type[] captured) {
            MethodVisitor code = out.visitMethod(Opcodes.ACC_STATIC, MAKE, desc, null, null);
            code.visitCode();
            code.visitTypeInsn(Opcodes.NEW, name);
            code.visitInsn(Opcodes.DUP);
            for (int i = 0, slot = 0; i < captured.length; slot += captured[i++].getSize()) {
                code.visitVarInsn(captured[i].getOpcode(Opcodes.ILOAD), slot);
            }
            code.visitMethodInsn(Opcodes.INVOKESPECIAL, name, "<init>", Type.getMethodDescriptor(Type.VOID_TYPE, captured), false);
            end(code, Type.getObjectType(name));
        }

        private static void call(
                ClassWriter out, String name, String sam, String method, Type[] captured, Handle to, Type exact) {
            int tag = to.getTag();
            boolean creates = tag == Opcodes.H_NEWINVOKESPECIAL;
            List<Type> wanted = new ArrayList<>(List.of(Type.getArgumentTypes(to.getDesc())));
            if (tag != Opcodes.H_INVOKESTATIC && !creates) wanted.add(0, Type.getObjectType(to.getOwner()));
            MethodVisitor code = out.visitMethod(Opcodes.ACC_PUBLIC, sam, method, null, null);
            code.visitCode();
            if (creates) {
                code.visitTypeInsn(Opcodes.NEW, to.getOwner());
                code.visitInsn(Opcodes.DUP);
            }
            int at = 0;
            for (int i = 0; i < captured.length; i++) {
                code.visitVarInsn(Opcodes.ALOAD, 0);
                code.visitFieldInsn(Opcodes.GETFIELD, name, "v" + i, captured[i].getDescriptor());
                convert(code, captured[i], wanted.get(at++));
            }
            Type[] given = Type.getArgumentTypes(method);
            Type[] narrow = exact.getArgumentTypes();
            for (int i = 0, slot = 1; i < given.length; slot += given[i++].getSize()) {
                code.visitVarInsn(given[i].getOpcode(Opcodes.ILOAD), slot);
                convert(code, given[i], narrow[i]);
                convert(code, narrow[i], wanted.get(at++));
            }
            int opcode = tag == Opcodes.H_INVOKESTATIC ? Opcodes.INVOKESTATIC
                    : tag == Opcodes.H_INVOKEINTERFACE ? Opcodes.INVOKEINTERFACE
                    : creates ? Opcodes.INVOKESPECIAL : Opcodes.INVOKEVIRTUAL;
            code.visitMethodInsn(opcode, to.getOwner(), to.getName(), to.getDesc(), to.isInterface());
            Type result = creates ? Type.getObjectType(to.getOwner()) : Type.getReturnType(to.getDesc());
            convert(code, result, exact.getReturnType());
            convert(code, exact.getReturnType(), Type.getReturnType(method));
            end(code, Type.getReturnType(method));
        }

        private static void end(MethodVisitor code, Type result) {
            code.visitInsn(result.getOpcode(Opcodes.IRETURN));
            code.visitMaxs(0, 0);
            code.visitEnd();
        }

        /** What is on the stack, as another type: boxed, unboxed, cast or dropped. */
        private static void convert(MethodVisitor code, Type from, Type to) {
            if (from.equals(to)) return;
            boolean primitive = from.getSort() < Type.ARRAY;
            if (to.getSort() == Type.VOID) {
                code.visitInsn(from.getSize() == 2 ? Opcodes.POP2 : Opcodes.POP);
            } else if (primitive && to.getSort() < Type.ARRAY) {
                throw new IllegalStateException("A lambda makes " + to + " of " + from + ", which is not written here yet.");
            } else if (primitive) {
                String box = box(from);
                code.visitMethodInsn(Opcodes.INVOKESTATIC, box, "valueOf", "(" + from + ")L" + box + ";", false);
            } else if (to.getSort() < Type.ARRAY) {
                String box = box(to);
                code.visitTypeInsn(Opcodes.CHECKCAST, box);
                code.visitMethodInsn(Opcodes.INVOKEVIRTUAL, box, to.getClassName() + "Value", "()" + to, false);
            } else if (!to.getInternalName().equals(OBJECT)) {
                code.visitTypeInsn(Opcodes.CHECKCAST, to.getInternalName());
            }
        }

        private static String box(Type primitive) {
            switch (primitive.getSort()) {
                case Type.BOOLEAN: return "java/lang/Boolean";
                case Type.CHAR: return "java/lang/Character";
                case Type.BYTE: return "java/lang/Byte";
                case Type.SHORT: return "java/lang/Short";
                case Type.INT: return "java/lang/Integer";
                case Type.LONG: return "java/lang/Long";
                case Type.FLOAT: return "java/lang/Float";
                default: return "java/lang/Double";
            }
        }
    }
}
