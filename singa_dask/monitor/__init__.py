"""What people look at: lines, tables, curves and pictures of runs, nets and plans."""
